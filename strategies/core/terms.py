"""The vocabulary of compatibility: what the choice of one group needs of the choice of another, as data.

A choice states what it lacks (`Compatible.lacks`) and what it needs (`Compatible.needs`), in terms of this file. One
resolver (engine/features/compatibility.py) compares the two, words each refusal, and finds choices that go together.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A property that each choice of a group has, unless it says that it lacks it.

    Both texts follow the name of a choice in a sentence for people.
    """

    group: str
    name: str
    offered: str
    lacking: str


@dataclass(frozen=True)
class Need:
    """A property that a choice cannot do without.

    Args:
        because: why, after `KEY=VALUE:`.
        key: the key that makes it needed, as `sync.shard=optimizer` or `attack`; "" for the choice itself.
        instead: an override that does without the property; "" where other choices of the group may.
    """

    term: Term
    because: str
    key: str = ""
    instead: str = ""


class Compatible:
    """A choice of a group whose terms others may need.

    What a subclass says in `lacks` and `needs` adds to what its base classes say (`lacks_of`, `needs_of`).
    """

    @property
    def lacks(self) -> Mapping[Term, str]:
        """Returns the terms of its group that it lacks, each with its own words for that, or "" for the usual ones."""
        return {}

    @property
    def needs(self) -> tuple[Need, ...]:
        """Returns what it needs of the choices of other groups."""
        return ()

    @property
    def stands_alone(self) -> bool:
        """Returns False where it makes sense beside a choice that a refusal does not know (compress=masked)."""
        return True


def lacks_of(chosen: Compatible) -> dict[Term, str]:
    """Returns the terms that a choice lacks by its class or by a base class, each with its words."""
    own = [vars(cls)["lacks"].fget(chosen) for cls in reversed(type(chosen).__mro__) if "lacks" in vars(cls)]
    return {term: words for each in own for term, words in each.items()}


def needs_of(chosen: Compatible) -> tuple[Need, ...]:
    """Returns the needs that a choice has by its class or by a base class."""
    own = [vars(cls)["needs"].fget(chosen) for cls in reversed(type(chosen).__mro__) if "needs" in vars(cls)]
    return tuple(dict.fromkeys(need for each in own for need in each))


def absent(*terms: tuple[Term, bool]) -> dict[Term, str]:
    """Returns the terms that do not hold."""
    return {term: "" for term, holds in terms if not holds}


def required(*needs: tuple[Need, bool]) -> tuple[Need, ...]:
    """Returns the needs that there are."""
    return tuple(need for need, is_one in needs if is_one)


# -- strategies

WHOLE_REPLICA = Term(
    "strategy", "whole replica", "holds each replica on one worker", "cuts a replica over several workers"
)
WHOLE_TENSORS = Term(
    "strategy", "whole tensors", "keeps each parameter whole on one worker", "holds some parameters in pieces"
)
SAMPLE_GRADIENTS = Term(
    "strategy",
    "gradients of samples",
    "gives the gradient of each sample by itself",
    "does not give the gradient of each sample by itself",
)
OWN_PASSES = Term(
    "strategy",
    "passes of the whole model",
    "runs the whole model on one worker, in passes that others may join",
    "has the model in pieces, or leaves its passes to a library",
)
ALL_STEPPED = Term(
    "strategy",
    "whole steps",
    "steps all parameters of a replica on one worker",
    "shares out the parameters that workers step",
)
ONE_MODEL_AT_A_TIME = Term(
    "strategy",
    "replaceable model",
    "can go on with another model in mid-run",
    "hands the model to a library, which is set up for one",
)
EVERY_PRECISION = Term("strategy", "every precision", "computes in each precision", "computes in float32 alone")
COMPILABLE = Term("strategy", "compiled passes", "has passes that can be compiled", "cannot be compiled")
WITHIN_REPLICA = Term(
    "strategy",
    "nothing across replicas",
    "sends nothing between replicas within a pass",
    "sends between replicas within a pass",
)
STRATEGY_AVERAGED = Term(
    "strategy", "average of parts", "lets an average of its weights be kept", "lets no average of its weights be kept"
)

# -- sync modes

TOGETHER = Term("sync", "synchronous", "has replicas step together", "lets replicas step at their own pace")
ALL_ALIVE = Term("sync", "all alive", "has each replica in every step", "goes on without replicas that have died")
BY_ENTRY = Term(
    "sync",
    "by entry",
    "updates each weight by that weight of the replicas alone",
    "updates a weight by what else a worker holds",
)
PLAIN_MEAN = Term(
    "sync",
    "plain mean",
    "is the mean of gradients that a library makes by itself",
    "is another rule than the mean of gradients in each step",
)
SAME_GRADIENTS = Term(
    "sync",
    "gradients of one step",
    "joins gradients of the same step and weights",
    "does not join gradients of the same step and weights",
)
ROWS_TOGETHER = Term(
    "sync", "all at once", "has the gradients of all replicas at once", "applies each push as it comes"
)
PUSHES = Term("sync", "one by one", "applies each push as it comes", "joins the gradients of all replicas at once")
NEIGHBOURS = Term(
    "sync",
    "neighbours",
    "has each worker join its neighbours' weights for itself",
    "gives all workers the same weights",
)
COMMON_ORIGIN = Term(
    "sync",
    "common origin",
    "joins gradients, or changes since all had the same weights",
    "has each worker join its neighbours' weights",
)
WHOLE_VECTORS = Term("sync", "whole gradients", "sees each gradient whole", "gives each server a piece of a gradient")
NO_SERVERS = Term("sync", "no servers", "has no servers", "has servers")
RESETTABLE = Term(
    "sync",
    "resettable",
    "keeps all of training in the weights and the optimizer, which may be set back",
    "keeps more of training than the weights and the optimizer",
)
SYNC_AVERAGED = Term(
    "sync", "average of weights", "lets an average of its weights be kept", "lets no average of its weights be kept"
)
SKIPS = Term("sync", "skipped steps", "can leave out a step", "cannot leave out a step")
EVERY_RATE = Term("sync", "scheduled rate", "can change its learning rate", "has one learning rate")
SHOWN_GRADIENTS = Term(
    "sync",
    "shown gradients",
    "shows each gradient that it steps with or pushes",
    "shows no gradient before a step",
)
OWN_STEPS = Term(
    "sync",
    "one gradient a step",
    "has every worker step with the mean gradient of all samples",
    "does not have every worker step with the mean gradient of all samples",
)
BACK = Term(
    "sync",
    "back after a failure",
    "takes a worker that failed back, or goes back to a checkpoint with all workers",
    "goes on without a worker that failed and never takes it back",
)
CLIENT_ROUNDS = Term(
    "sync",
    "rounds of clients",
    "has clients train by themselves for a round",
    "steps with the gradients of all workers, and not with the changes of clients",
)
STEP_GRADIENTS = Term(
    "sync",
    "gradients of steps",
    "steps with the gradients of all workers",
    "has clients train by themselves for a round",
)
EQUAL_CLIENTS = Term(
    "sync",
    "clients alike",
    "draws clients with equal chances, and all of them finish their round",
    "draws clients with different chances, or lets some leave a round",
)

# -- what is sent

UNCOMPRESSED = Term("compress", "uncompressed", "sends vectors as they are", "compresses what is sent")
LOSSLESS = Term("compress", "lossless", "loses nothing", "loses a part of what is sent")
ADDABLE = Term(
    "compress",
    "addable messages",
    "makes messages that can be added up on their way",
    "makes messages that cannot be added up on their way",
)
MESSAGE_BY_ENTRY = Term(
    "compress",
    "messages by entry",
    "treats each entry by itself",
    "chooses or scales an entry by the others that a worker sends",
)
FOR_CHANGES = Term("compress", "changes of weights", "makes sense for changes of weights", "is a rule for gradients")
MESSAGE_LENGTH = Term(
    "compress", "length of messages", "keeps the length of gradients", "changes the length of gradients"
)
FABRIC = Term("collective", "fabric", "uses the fabric's own sum", "is an algorithm for sums")

# -- robustness, federation and privacy

ADDED_UP = Term("aggregate", "added up", "adds gradients up as they come", "compares the gradients of all replicas")
MEAN_LENGTH = Term(
    "aggregate", "length of the result", "keeps the length of gradients", "changes the length of gradients"
)
UNCLIPPED = Term("clip", "unclipped", "leaves gradients as they are", "shortens a gradient that is too long")
UNINFORMED = Term("attack", "uninformed", "knows nothing of the other workers", "knows what the honest workers send")
HONEST = Term("attack", "honest", "has all workers send what they compute", "has some workers send something else")
WEIGHTS_ALONE = Term(
    "client",
    "weights alone",
    "delivers nothing but weights",
    "delivers more than weights",
)
PLAIN_CLIENT = Term("client", "plain client", "keeps nothing from round to round", "keeps state of each client")
NOT_PRIVATE = Term(
    "privacy", "no privacy", "leaves gradients and changes as they are", "clips the gradients of samples, or changes"
)
BATCH_GRADIENTS = Term(
    "privacy",
    "gradients of batches",
    "takes the gradient of a batch as a whole",
    "takes the gradient of each sample by itself",
)
NOT_SECURE = Term("secure", "open updates", "shows the server each update", "shows the server the sum alone")

VOCABULARY = tuple(term for term in dict(globals()).values() if isinstance(term, Term))
