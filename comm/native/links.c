/* Flows that share links; see ../links.py, whose events these are, to the bit. ../native_links.py calls it.

   Lanes and flows are numbers. A flow's number is free once the flow has ended. A flow has one event at most: its
   beginning or its end. The memory that flows and lanes need is had when they are added. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#pragma STDC FP_CONTRACT OFF /* of clang; the next line is gcc's */
#pragma GCC optimize("fp-contract=off")

#define ROUNDING 1e-12 /* as _ROUNDING */

enum { NOTHING = -1, CHANGE = -2, AT_ONCE = -3, NO_MEMORY = -4 };
static const int64_t ENDS = 0, BEGINS = INT64_C(1) << 62; /* added to a number: at the same time, ends come first */

typedef struct { double value; int64_t order; int item; } Entry;
typedef struct { Entry *entries; int *place; int length; } Heap; /* the least (value, order) first; place: of an item */

typedef struct Hold { struct Hold *before, *after; int lane, flow; } Hold; /* of a lane by a flow */

typedef struct {
    double bandwidth, left; /* left: for flows without a rate, in `share` */
    Hold *first, *last;     /* of the flows that it carries now, in the order in which they began */
    int open, order;        /* flows without a rate, and its number, in `share` */
    int is_touched;
} Lane;

typedef struct {
    double left, posted, since, rate, bandwidth, fair; /* as Flow in links.py; fair: its rate from now on */
    Hold *holds;
    int lanes, room;         /* holds: of so many lanes, with room for so many */
    int next;                /* of its connection, or the next number that is free; -1: none */
    int is_found, has_fair;  /* in `share` */
} Flow;

typedef struct {
    double due;    /* until then, exclusive, nothing happens */
    double ended;  /* when the flow ended that `links_happen` returned last */
    double change; /* when links change next; not a number: never */
    double now, moment;
    int is_within, some_ended; /* of the events of `moment`, some are left; a flow has ended in it */
    int64_t number;
    Lane *lanes;
    Flow *flows;
    int *touched, *found; /* lanes whose flows are others since rates were last found; flows that share links with them,
                             directly or through others */
    int lane_count, lane_room, flow_room, touched_count, live, free; /* live: flows under way and in queues */
    Heap events, shares;
} Links;

/* -- heaps */

static int is_before(const Entry *a, const Entry *b) {
    return a->value < b->value || (a->value == b->value && a->order < b->order);
}

static void set(Heap *heap, int at, Entry entry) {
    heap->entries[at] = entry;
    heap->place[entry.item] = at;
}

static void sift(Heap *heap, int at, Entry entry) {
    for (int above; at > 0 && is_before(&entry, &heap->entries[above = (at - 1) / 2]); at = above)
        set(heap, at, heap->entries[above]);
    for (int below; (below = 2 * at + 1) < heap->length; at = below) {
        if (below + 1 < heap->length && is_before(&heap->entries[below + 1], &heap->entries[below])) below++;
        if (!is_before(&heap->entries[below], &entry)) break;
        set(heap, at, heap->entries[below]);
    }
    set(heap, at, entry);
}

static void put(Heap *heap, int item, double value, int64_t order) {
    int at = heap->place[item];
    sift(heap, at < 0 ? heap->length++ : at, (Entry){value, order, item});
}

static void drop(Heap *heap, int item) {
    int at = heap->place[item];
    if (at < 0) return;
    heap->place[item] = -1;
    Entry last = heap->entries[--heap->length];
    if (at < heap->length) sift(heap, at, last);
}

/* -- flows on lanes */

static double slowest(const Links *s, const Flow *flow) {
    double least = INFINITY;
    for (int i = 0; i < flow->lanes; i++)
        if (s->lanes[flow->holds[i].lane].bandwidth < least) least = s->lanes[flow->holds[i].lane].bandwidth;
    return least;
}

static void touch(Links *s, int lane) {
    if (s->lanes[lane].is_touched) return;
    s->lanes[lane].is_touched = 1;
    s->touched[s->touched_count++] = lane;
}

static void hold(Links *s, Hold *hold) {
    Lane *lane = &s->lanes[hold->lane];
    hold->before = lane->last, hold->after = NULL;
    *(lane->last ? &lane->last->after : &lane->first) = hold;
    lane->last = hold;
    touch(s, hold->lane);
}

static void let_go(Links *s, Hold *hold) {
    Lane *lane = &s->lanes[hold->lane];
    *(hold->before ? &hold->before->after : &lane->first) = hold->after;
    *(hold->after ? &hold->after->before : &lane->last) = hold->before;
    touch(s, hold->lane);
}

/* -- rates */

/* Lists the flows that share links with touched lanes, directly or through others. Returns how many. */
static int affected(Links *s) {
    int count = 0;
    for (int i = 0; i < s->touched_count; i++) /* grows */
        for (Hold *each = s->lanes[s->touched[i]].first; each; each = each->after) {
            Flow *flow = &s->flows[each->flow];
            if (flow->is_found) continue;
            flow->is_found = 1, flow->has_fair = 0;
            s->found[count++] = each->flow;
            for (int j = 0; j < flow->lanes; j++) touch(s, flow->holds[j].lane);
        }
    for (int i = 0; i < s->touched_count; i++) s->lanes[s->touched[i]].is_touched = 0;
    s->touched_count = 0;
    return count;
}

/* Finds the max-min fair rates of the flows that are found, by filling. */
static void fill(Links *s, int count) {
    int lanes = 0, rated = 0;
    for (int i = 0; i < count; i++) {
        Flow *flow = &s->flows[s->found[i]];
        for (int j = 0; j < flow->lanes; j++) {
            Lane *lane = &s->lanes[flow->holds[j].lane];
            if (lane->open++ == 0) lane->order = lanes++, lane->left = lane->bandwidth;
        }
    }
    for (int i = 0; i < count; i++) {
        Flow *flow = &s->flows[s->found[i]];
        for (int j = 0; j < flow->lanes; j++) {
            int number = flow->holds[j].lane;
            Lane *lane = &s->lanes[number];
            if (s->shares.place[number] < 0) put(&s->shares, number, lane->bandwidth / lane->open, lane->order);
        }
    }
    while (rated < count) {
        Entry fullest = s->shares.entries[0];
        Lane *lane = &s->lanes[fullest.item];
        drop(&s->shares, fullest.item);
        if (!lane->open) continue;
        double current = lane->left / lane->open, share = fullest.value;
        if (current > share * (1 + ROUNDING)) { /* some of its flows got less elsewhere */
            put(&s->shares, fullest.item, current, fullest.order);
            continue;
        }
        for (Hold *each = lane->first; each; each = each->after) {
            Flow *flow = &s->flows[each->flow];
            if (flow->has_fair) continue;
            flow->fair = share, flow->has_fair = 1, rated++;
            for (int j = 0; j < flow->lanes; j++) {
                s->lanes[flow->holds[j].lane].left -= share;
                s->lanes[flow->holds[j].lane].open--;
            }
        }
    }
    while (s->shares.length) s->shares.place[s->shares.entries[--s->shares.length].item] = -1;
}

static void share(Links *s) {
    int count = affected(s);
    if (count == 1) /* most often */
        s->flows[s->found[0]].fair = s->flows[s->found[0]].bandwidth;
    else
        fill(s, count);
    for (int i = 0; i < count; i++) {
        Flow *flow = &s->flows[s->found[i]];
        flow->is_found = 0;
        if (flow->fair == flow->rate) continue;
        flow->left = flow->left - flow->rate * (s->now - flow->since);
        if (flow->left < 0) flow->left = 0;
        flow->since = s->now, flow->rate = flow->fair;
        if (flow->rate > 0)
            put(&s->events, s->found[i], s->now + flow->left / flow->rate, ENDS + ++s->number);
        else
            drop(&s->events, s->found[i]);
    }
}

/* -- events */

/* A flow has ended at `moment`; the next one of its connection begins. */
static void leave(Links *s, int number, double moment) {
    Flow *flow = &s->flows[number];
    if (flow->next >= 0) {
        double posted = s->flows[flow->next].posted;
        put(&s->events, flow->next, posted > moment ? posted : moment, BEGINS + ++s->number);
    }
    flow->next = s->free;
    s->free = number;
    s->live--;
    s->ended = moment;
}

/* Returns whether the flow ended at once. */
static int begin(Links *s, int number, double moment) {
    Flow *flow = &s->flows[number];
    flow->bandwidth = slowest(s, flow);
    double alone = flow->bandwidth > 0 ? flow->left / flow->bandwidth : INFINITY;
    if (moment + alone <= s->now) {
        leave(s, number, moment + alone);
        return 1;
    }
    flow->left -= flow->left * ((s->now - moment) / alone);
    flow->since = s->now;
    for (int i = 0; i < flow->lanes; i++) hold(s, &flow->holds[i]);
    return 0;
}

static void end(Links *s, int number, double moment) {
    Flow *flow = &s->flows[number];
    for (int i = 0; i < flow->lanes; i++) let_go(s, &flow->holds[i]);
    leave(s, number, moment);
}

static void find_due(Links *s) {
    s->due = s->events.length ? s->events.entries[0].value : INFINITY;
    if (s->touched_count && s->now < s->due) s->due = s->now;
    if (s->change < s->due) s->due = s->change;
}

/* Goes on with the next moment's events. Returns a flow that has ended, CHANGE if links change now, or NOTHING if none
   is left, until `before` or of the moment in which flows have ended. */
int links_happen(Links *s, double before) {
    const Heap *events = &s->events;
    s->due = -INFINITY;
    for (;;) {
        if (!s->is_within) {
            if (s->touched_count && s->now < before) share(s);
            double moment = events->length ? events->entries[0].value : INFINITY;
            int begins = !events->length || events->entries[0].order >= BEGINS;
            int matters = s->change <= before && (before < INFINITY || s->live);
            if (matters && (s->change < moment || (s->change == moment && begins))) {
                if (s->change > s->now) s->now = s->change;
                return CHANGE;
            }
            if (moment > before || (begins && moment == before)) break;
            if (moment > s->now) s->now = moment;
            s->moment = moment, s->is_within = 1, s->some_ended = 0;
        }
        while (events->length && events->entries[0].value == s->moment) {
            Entry event = events->entries[0];
            drop(&s->events, event.item);
            if (event.order < BEGINS)
                end(s, event.item, s->moment);
            else if (!begin(s, event.item, s->moment))
                continue;
            s->some_ended = 1;
            return event.item;
        }
        s->is_within = 0;
        if (s->some_ended) break;
    }
    find_due(s);
    return NOTHING;
}

/* -- what is added and changed */

#define GROW(array, count)                                              \
    do {                                                                \
        void *more = realloc((array), (size_t)(count) * sizeof *(array)); \
        if (!more) return NO_MEMORY;                                    \
        (array) = more;                                                 \
    } while (0)

/* Returns the new lane's number. */
int links_add(Links *s, double bandwidth) {
    if (s->lane_count == s->lane_room) {
        int room = 2 * s->lane_room + 16;
        GROW(s->lanes, room);
        GROW(s->touched, room);
        GROW(s->shares.entries, room);
        GROW(s->shares.place, room);
        s->lane_room = room;
    }
    s->lanes[s->lane_count] = (Lane){.bandwidth = bandwidth};
    s->shares.place[s->lane_count] = -1;
    return s->lane_count++;
}

static int more_flows(Links *s) {
    int room = 2 * s->flow_room + 16;
    GROW(s->flows, room);
    GROW(s->found, room);
    GROW(s->events.entries, room);
    GROW(s->events.place, room);
    for (int i = s->flow_room; i < room; i++) {
        s->flows[i] = (Flow){.next = i + 1 < room ? i + 1 : -1};
        s->events.place[i] = -1;
    }
    s->free = s->flow_room;
    s->flow_room = room;
    return 0;
}

/* Returns the number of a new flow, or AT_ONCE if it has ended already. `after`: the last one of its connection; -1: its
   connection is free. */
int links_post(Links *s, int after, const int *lanes, int count, double nbytes, double at) {
    if (s->free < 0 && more_flows(s)) return NO_MEMORY;
    int number = s->free;
    Flow *flow = &s->flows[number];
    if (flow->room < count) {
        GROW(flow->holds, count);
        flow->room = count;
    }
    flow->lanes = count;
    for (int i = 0; i < count; i++) flow->holds[i] = (Hold){.lane = lanes[i], .flow = number};
    double bandwidth = slowest(s, flow);
    if (after < 0 && bandwidth > 0 && at + nbytes / bandwidth <= at) return AT_ONCE;
    s->free = flow->next;
    flow->next = -1, flow->left = nbytes, flow->posted = at, flow->rate = 0;
    s->live++;
    if (after < 0)
        put(&s->events, number, at, BEGINS + ++s->number);
    else
        s->flows[after].next = number;
    find_due(s);
    return number;
}

void links_change(Links *s, int number, double bandwidth) {
    s->lanes[number].bandwidth = bandwidth;
    touch(s, number);
    for (Hold *each = s->lanes[number].first; each; each = each->after)
        s->flows[each->flow].bandwidth = slowest(s, &s->flows[each->flow]);
}

double links_bandwidth(const Links *s, int number) { return s->lanes[number].bandwidth; }

int links_carries(const Links *s, int number) { return s->lanes[number].first != NULL; }

Links *links_new(void) {
    Links *s = calloc(1, sizeof *s);
    if (s) s->free = -1, s->change = NAN, s->due = INFINITY;
    return s;
}

void links_free(Links *s) {
    for (int i = 0; i < s->flow_room; i++) free(s->flows[i].holds);
    void *all[] = {s->lanes,         s->flows,          s->touched,        s->found,
                   s->events.place, s->events.entries, s->shares.entries, s->shares.place};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(s);
}
