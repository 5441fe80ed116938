"""Without a running Ray, objects are kept in this process; with one they are Ray's."""

from __future__ import annotations

import numpy as np
import pytest
import ray

from muxrl.servers.trainers.rllib.object_store import Kept, keep_objects_here


def test_without_ray_an_object_is_copied_and_given_back() -> None:
    keep_objects_here()
    keep_objects_here()  # a second call changes nothing
    weights = np.zeros(2)
    refs = [ray.put({"weights": weights}), ray.put("text")]
    weights += 1.0  # as IMPALA's learning thread does
    kept, text = ray.get(refs)
    assert (kept["weights"].tolist(), text) == ([0.0, 0.0], "text")
    assert ray.get(refs[1]) == "text"
    assert not ray.is_initialized()


def test_with_a_ray_objects_are_its_own(running_ray: None) -> None:
    keep_objects_here()
    ref = ray.put("text")
    assert isinstance(ref, ray.ObjectRef)
    assert ray.get(ref) == "text"
    assert ray.get([ref]) == ["text"]
    assert ray.get(Kept("from before there was one")) == "from before there was one"
    with pytest.raises((TypeError, ValueError)):
        ray.get("no reference")
