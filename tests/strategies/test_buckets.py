"""How parameters go to buckets."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.exchange.buckets import allocate, assign, views_of

capacities = st.integers(1, 100)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.float16])
tensors = st.lists(st.builds(lambda n, dtype: torch.ones(n, dtype=dtype), st.integers(1, 20), dtypes), max_size=12)


@given(st.lists(st.integers(0, 120), min_size=1), capacities, capacities)
def test_every_parameter_is_in_one_bucket_in_reverse_order(sizes, capacity, first):
    buckets = assign(sizes, capacity, first)
    assert [i for bucket in buckets for i in bucket] == list(reversed(range(len(sizes))))
    assert all(buckets)


@given(st.lists(st.integers(0, 120), min_size=1), capacities, capacities)
def test_a_bucket_keeps_to_its_limit_unless_one_parameter_alone_is_larger(sizes, capacity, first):
    for number, bucket in enumerate(assign(sizes, capacity, first)):
        limit = capacity if number else first
        assert sum(sizes[i] for i in bucket) <= limit or len(bucket) == 1


@given(st.lists(st.integers(0, 120), min_size=1), capacities, capacities)
def test_a_bucket_is_closed_only_when_the_next_parameter_would_not_fit(sizes, capacity, first):
    buckets = assign(sizes, capacity, first)
    for number, bucket in enumerate(buckets[:-1]):
        limit = capacity if number else first
        assert sum(sizes[i] for i in bucket) + sizes[buckets[number + 1][0]] > limit


@given(tensors, capacities, capacities)
def test_buckets_hold_each_parameter_once_with_its_dtype_shape_and_memory(parameters, capacity, first):
    buckets = allocate(parameters, capacity, first)
    assert sorted(i for bucket in buckets for i in bucket.parameters) == list(range(len(parameters)))
    for bucket in buckets:
        for i, view in bucket.views.items():
            assert view.dtype == parameters[i].dtype and view.shape == parameters[i].shape
            view.fill_(i)
    for bucket in buckets:  # filling one view left all others alone
        assert all(bool((bucket.views[i] == i).all()) for i in bucket.parameters)
        assert bucket.flat.numel() == sum(parameters[i].numel() for i in bucket.parameters)


def test_views_share_the_memory_of_what_they_are_views_of():
    flat = torch.arange(10.0)
    first, second = views_of(flat, [torch.empty(2, 3), torch.empty(4)])
    assert torch.equal(first, torch.arange(6.0).view(2, 3))
    second[0] = -1
    assert flat[6] == -1
