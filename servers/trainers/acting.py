"""Asks trainers for actions: gives them rows, and checks the actions that come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from muxrl.protocol.messages import PolicyNetwork
from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import choices, from_gymnasium
from muxrl.servers.acting import Acting, Asked
from muxrl.servers.agents.dense_policy import DensePolicy
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS
from muxrl.servers.agents.log_probs import IS_LOGGED, LOG_PROB
from muxrl.servers.trainers.failures import Calls
from muxrl.servers.trainers.interface import Acted, PolicySpec, Rows, Trainer
from muxrl.servers.trainers.learners import Learners
from muxrl.servers.trainers.plain_state import from_plain, to_plain

STATE = "state"
"""Key under which a recurrent state, a dict of arrays, has a trainer's own object for an agent."""

MakeTrainer = Callable[[PolicySpec], Trainer]
What = Literal["state", "weights", "networks"]
"""What is saved of a trainer."""


class Actors(Acting):
    """Chooses actions with the trainers of a server.

    A trainer with ``acts_while_learning`` learns while a copy of it acts. Any other trainer acts
    only while it does not learn: `lock` is held meanwhile.

    Args:
        name: of the trainers' class, for messages.
        specs: the policies, by policy id.
        make: makes the trainer of a policy.
        seed: of the generators that actions are drawn from.
    """

    def __init__(
        self, name: str, specs: Mapping[str, PolicySpec], make: MakeTrainer, seed: int
    ) -> None:
        self.specs = specs
        self._make = make
        self.name, self._call = name, Calls(name)
        made = {policy_id: make(spec) for policy_id, spec in specs.items()}
        self.learners = Learners(made, self._call)
        self._num_choices = {
            policy_id: np.array([n for _, n in choices(from_gymnasium(spec.action_space))])
            for policy_id, spec in specs.items()
        }
        """By policy: the number of options of each choice of an action; empty for a Box."""
        self.lock = threading.RLock()
        self.weights_seq_no = 0
        self.num_env_steps_sampled = 0
        self.is_learned_from = True
        """Whether steps of training episodes are learned from; False for frozen trainers."""
        self.should_explore: bool | None = None
        """Whether actions are drawn, whatever an episode asks for; None: as the episode asks."""
        first = next(iter(self.learners.values()))
        self._is_trusted = getattr(first, "is_trusted", False)
        self._corrects_off_policy = getattr(first, "learns_from", "") == "recent"
        self.has_copies = getattr(first, "acts_while_learning", False)
        self._actors = dict(self.learners)
        if self.has_copies:
            self._actors = self._copies()
            self.publish()
        self._initial: dict[str, dict[str, np.ndarray]] = {
            policy_id: getattr(one, "initial_state", dict)()
            for policy_id, one in self.learners.items()
        }
        """By policy: the initial recurrent state of a row; {} if it is no dict of arrays."""
        self._keys = {p: _keys_of(one, specs[p]) for p, one in self.learners.items()}
        self.untrained: dict[str, Any] | None = None
        """By policy: weights or state before training, as plain values; None: they are not kept."""
        self._untrained_actors: dict[str, Trainer] | None = None  # made at their first use
        self._rng = np.random.default_rng((seed, 0))
        self._evaluation_rng = np.random.default_rng((seed, 1))

    def publish(self) -> None:
        """Gives the copies that act the weights that were learned."""
        if self.has_copies:
            for policy_id, learner in self.learners.items():
                actor: Any = self._actors[policy_id]
                if hasattr(actor, "follow"):
                    with self.lock:
                        self._call("follow", policy_id, partial(actor.follow, learner))
                    continue
                weights = self._call("weights", policy_id, partial(_plain_of, learner, "weights"))
                with self.lock:
                    actor.set_weights(from_plain(weights))

    def _copies(self) -> dict[str, Trainer]:
        """Returns trainers that only act."""
        made = {policy_id: self._make(spec) for policy_id, spec in self.specs.items()}
        for one in made.values():
            if hasattr(one, "begin_acting"):
                one.begin_acting()
        return made

    @property
    def num_updates(self) -> int | None:
        """Updates of all trainers so far; None: the trainers do not count them."""
        learners: list[Any] = list(self.learners.values())
        if not all(hasattr(one, "num_updates") for one in learners):
            return None
        return sum(one.num_updates for one in learners)

    def keep_untrained(self) -> None:
        """Keeps the trainers' weights or states as they are now, to act untrained later."""
        self.untrained = self.get("weights" if self.has_copies else "state")

    def get(self, what: What) -> dict[str, Any]:
        """Returns the ``state()`` or ``networks()`` of each trainer that learns, or the
        ``weights()`` of each that acts, as plain values; without trainers that lack the method.

        Raises:
            TrainerFailed: a trainer raised, or holds something that cannot be saved.
        """
        trainers = self._actors if what == "weights" else self.learners
        with self.lock:
            return {
                policy_id: self._call(what, policy_id, partial(_plain_of, one, what))
                for policy_id, one in trainers.items()
                if hasattr(one, what)
            }

    def put(self, what: What, values: Mapping[str, Any]) -> None:
        """Loads what `get` returned, for some or all policies.

        Raises:
            TrainerFailed: a trainer cannot load it.
        """
        with self.lock:
            self._put(self.learners, what, values)
            if what == "state":
                self.learners.forget_sound()
        self.publish()

    def _put(self, trainers: Mapping[str, Any], what: What, values: Mapping[str, Any]) -> None:
        method = "load" if what == "state" else f"set_{what}"
        for policy_id, own in values.items():
            put = getattr(trainers[policy_id], method)
            self._call(method, policy_id, partial(put, from_plain(own)))

    def load(self, weights: Mapping[str, Any], weights_seq_no: int) -> None:
        """Loads weights as `put` does, and sets their version."""
        self.put("weights", weights)
        self.weights_seq_no = weights_seq_no

    # --- acting -------------------------------------------------------------------------

    def answer(self, asked: Asked) -> Acted:
        policy_id = asked.policy_id
        rows = self._rows(asked, self._keys[policy_id])
        acted = self.ask(policy_id, rows, is_untrained=asked.is_untrained)
        if asked.logged:
            asked.put_logged(acted.actions)
            self._note_logged(asked, acted.outputs)
        if self._is_trusted:
            return acted
        lead = (len(rows),) if rows.present is None else rows.present.shape
        outputs = {**acted.outputs, IS_LOGGED: asked.are_logged(lead)}
        states = acted.states
        if not self._initial[policy_id] and states is not None:
            kept = np.empty(len(rows), object)
            for i, state in enumerate(states):
                kept[i] = Kept(state)
            states = {STATE: kept}
        return Acted(acted.actions, outputs, states)

    def _note_logged(self, asked: Asked, outputs: Mapping[str, Any]) -> None:
        """Replaces log-probabilities of the policy by those with which clients chose actions.

        An unknown one becomes infinite: any ratio of the policy's probability to it is then 0, so
        that learners give the action no weight.
        """
        if LOG_PROB in outputs:
            for first, (_, is_given, known) in asked.logged:
                if known is None or not self._corrects_off_policy:
                    known = np.full(len(is_given), np.inf)
                rows = outputs[LOG_PROB][first : first + len(is_given)]
                are = is_given.reshape(len(is_given), -1).any(axis=-1)  # in a team: any member's
                rows[are] = np.where(np.isnan(known), np.inf, known)[are]

    def query(self, what: Literal["probabilities", "value"], asked: Asked) -> np.ndarray | None:
        """Returns the result of a trainer's `probabilities` or `value` for one row, float64.

        None: the trainer has no such method, or cannot tell.

        Raises:
            TrainerFailed: the method raised, or returned something invalid.
        """
        policy_id = asked.policy_id
        # A copy that acts may lack the learned critic.
        trainer = (self.learners if what == "value" else self._actors)[policy_id]
        method = getattr(trainer, what, None)
        if not callable(method):
            return None
        rows = replace(self._rows(asked), should_explore=True)

        def ask() -> np.ndarray | None:
            answered = method(rows)
            return None if answered is None else np.asarray(_on_cpu(answered), float)

        with self.lock:
            found: np.ndarray | None = self._call(what, policy_id, ask)
        if found is None:
            return None
        expected, is_right = "one finite number", found.shape == (1,) and np.isfinite(found).all()
        if what == "probabilities":
            num = int(self._num_choices[policy_id].sum())
            expected = f"a row of {num} that sum up to 1, 0 where a mask forbids"
            is_right = (
                found.shape == (1, num) and (found >= 0).all() and abs(found.sum() - 1) < 1e-4
            )
            is_right = is_right and (rows.masks is None or not found[rows.masks == 0].any())
        if not is_right:
            raise self._call.failure(what, policy_id, f"expected {expected}, got {found.tolist()}")
        return found[0]

    def ask(self, policy_id: str, rows: Rows, *, is_untrained: bool = False) -> Acted:
        """Returns a trainer's checked answer to rows, in arrays.

        Raises:
            TrainerFailed: the trainer raised, or its actions are not of the action space.
        """
        trainer = (self._untrained() if is_untrained else self._actors)[policy_id]
        try:
            answer = trainer.act(rows)
        except (Exception, SystemExit) as error:
            raise self._call.raised("act", policy_id, error) from error
        if self._is_trusted:
            return answer
        acted = answer if isinstance(answer, Acted) else Acted(answer)
        # Copied, as the actions are: a trainer may write its next answer into the same arrays.
        outputs = {name: np.array(column) for name, column in acted.outputs.items()}
        states = acted.states
        if isinstance(states, dict):
            states = _own(states)
        elif states is not None:
            states = [_own(state) for state in states]
        return Acted(self._checked(policy_id, rows, acted), outputs, states)

    def _rows(self, asked: Asked, keys: tuple[str, ...] | None = None) -> Rows:
        """Returns the rows to act on, with these parts of the observations; None: all parts."""
        seen = asked.observations(keys)
        if not self._is_trusted:
            # Copied, since observations are recorded, and a trainer may write into its rows.
            seen = each_array(np.array, seen)
        observations, masks, present, inputs = seen, None, None, {}
        if isinstance(seen, dict):
            inputs = dict(seen)
            observations, present = inputs.pop(OBS), inputs.pop(ALIVE, None)
            masks = inputs.pop(ACTION_MASK, None)
        initial = self._initial[asked.policy_id]
        states: Any
        if initial:
            states = asked.states(lambda: initial)
        elif self._is_trusted:
            states = None
        else:
            states = asked.states(no_state)[STATE]
            states = [None if state is None else state.value for state in states]
        return Rows(
            observations,
            masks,
            states,
            asked.agents(),
            asked.should_explore if self.should_explore is None else self.should_explore,
            asked.is_training and self.is_learned_from,
            self._rng if asked.is_training else self._evaluation_rng,
            present,
            inputs,
            self.num_env_steps_sampled,
        )

    def _checked(self, policy_id: str, rows: Rows, acted: Acted) -> np.ndarray:
        """Returns the actions as an array of the space's dtype.

        Raises:
            TrainerFailed: they are not of the action space, or their number is not that of the
                rows.
        """
        space = self.specs[policy_id].action_space
        got = acted.actions
        actions = np.asarray(_on_cpu(got))
        shape = (len(rows), *(space.shape or ()))
        problem = ""
        if actions.shape != shape or actions.dtype.kind not in "iufb":
            what = f"shape {actions.shape} of {actions.dtype}"
            what = type(got).__name__ if actions.dtype == object else what
            problem = f"an array of shape {shape}, got {what}"
        elif not (num := self._num_choices[policy_id]).size:
            is_bad = ~np.isfinite(actions)
            if is_bad.any():
                which = f"{actions[is_bad][0]} for agent {_first(rows, is_bad)!r}"
                problem = f"finite numbers, got {which}"
        else:
            if rows.present is not None:  # actions of absent members are never sent
                actions = np.where(rows.present == 0, 0, actions)
            problem = _no_choice(num, rows, actions)
        columns, states, initial = {**acted.outputs}, acted.states, self._initial[policy_id]
        if states is not None and not initial:
            columns["states"] = states
        elif states is not None:
            has = sorted(states) if isinstance(states, dict) else type(states).__name__
            if has != sorted(initial):
                problem = problem or f"states {sorted(initial)} as of initial_state(), got {has}"
            else:
                columns |= {f"states[{key!r}]": part for key, part in states.items()}
        for name, column in columns.items():
            if len(column) != len(rows):
                problem = problem or f"{len(rows)} rows of {name!r}, got {len(column)}"
        if problem:
            raise self._call.failure("act", policy_id, f"expected {problem}")
        return actions.astype(space.dtype, copy=True)

    def _untrained(self) -> Mapping[str, Trainer]:
        if self._untrained_actors is None:
            assert self.untrained is not None, "the store refuses what is not kept"
            made = self._copies()
            self._put(made, "weights" if self.has_copies else "state", self.untrained)
            self._untrained_actors = made
        return self._untrained_actors

    # --- networks -----------------------------------------------------------------------

    def acting(self, policy_id: str) -> Any:
        """Returns the trainer that acts now."""
        return self._actors[policy_id]

    def acting_network(self, policy_id: str) -> PolicyNetwork | None:
        """Returns the layers of the network that acts, views of the parameters.

        None: they are not plain layers, or the trainer has no such method.

        Raises:
            TrainerFailed: the trainer raised.
        """
        method = getattr(self.acting(policy_id), "acting_network", None)
        return self._call("acting_network", policy_id, method) if callable(method) else None

    def initial_state(self, policy_id: str) -> Mapping[str, np.ndarray]:
        """Returns the initial recurrent state of a row; {}: the trainer has no
        ``initial_state``, or is not recurrent."""
        return self._initial[policy_id]

    def epsilon(self, policy_id: str) -> float | None:
        """Returns the current probability of a random action; None: the trainer has no epsilon."""
        actor = self.acting(policy_id)
        if hasattr(actor, "env_steps"):
            actor.env_steps = self.num_env_steps_sampled
        found = getattr(actor, "epsilon", None)
        return None if found is None else float(found)

    def dense_policies(self) -> dict[str, DensePolicy] | None:
        """Returns the current policies; None: not all of them are plain layers to logits.

        Raises:
            TrainerFailed: a trainer raised.
        """
        found: dict[str, DensePolicy] = {}
        for policy_id, spec in self.specs.items():
            keys = None
            if len(spec.parts) > 1 or spec.has_masks:  # the observation is a dict
                keys = (OBS, ACTION_MASK) if spec.has_masks else (OBS,)
                keys = getattr(self.acting(policy_id), "acting_keys", keys)
            one = DensePolicy.of(self.acting_network(policy_id), keys)
            is_discrete = self._num_choices[policy_id].shape == (1,) and not spec.members
            if one is None or not is_discrete or self.epsilon(policy_id) is not None:
                return None
            found[policy_id] = one
        return found

    def noise(self, shape: tuple[int, ...], *, is_training: bool) -> np.ndarray:
        """Draws ``noise`` for Gumbel-max: the action is the argmax of logits - log(noise)."""
        if self.should_explore is False:
            return np.ones(shape)
        rng = self._rng if is_training else self._evaluation_rng
        return rng.standard_exponential(shape)


class Kept:
    """Wraps a state of any kind, so that numpy does not take it for an array."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def no_state() -> dict[str, np.ndarray]:
    """Returns the initial recurrent state of a row, of a trainer without ``initial_state``."""
    return {STATE: np.array(None, object)}


def _own(state: Any) -> Any:
    """Returns a copy of a state that shares no arrays or tensors with it."""
    if isinstance(state, dict):
        return {key: _own(part) for key, part in state.items()}
    if type(state) in (tuple, list):
        return type(state)(map(_own, state))
    if isinstance(state, np.ndarray):
        return state.copy()
    return state.clone() if hasattr(state, "clone") else state


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value


def _plain_of(trainer: Any, what: What) -> Any:
    return to_plain(getattr(trainer, what)(), what if what == "state" else f"{what}()")


def _keys_of(trainer: Any, spec: PolicySpec) -> tuple[str, ...] | None:
    """Returns the parts of observations that rows to act on need; None: all of them."""
    keys: tuple[str, ...] | None = getattr(trainer, "asked_keys", None)
    return keys if keys is not None and set(keys) < spec.parts.keys() else None


def _no_choice(num: np.ndarray, rows: Rows, actions: np.ndarray) -> str:
    """Returns what is wrong with an action that is out of range or masked; "" if all are valid.

    Args:
        num: number of options of each choice.
        rows: the rows that were acted on.
        actions: the actions, one for each row.
    """
    chosen = actions.reshape(len(rows), -1)
    outside = (chosen < 0) | (chosen >= num) | (chosen != np.floor(chosen))
    if outside.any():
        agent = _first(rows, outside)
        wrong = actions[outside.any(axis=1)][0]
        return f"whole numbers from 0 below {num.tolist()}, got {wrong} for agent {agent!r}"
    if rows.masks is not None:
        first = np.concatenate([[0], np.cumsum(num)[:-1]])
        masks = rows.masks.reshape(len(rows), -1)
        available = np.take_along_axis(masks, chosen.astype(int) + first, axis=1) != 0
        if not available.all():
            wrong, agent = actions[~available.all(axis=1)][0], _first(rows, ~available)
            return f"an available action, got {wrong}, which the mask of agent {agent!r} forbids"
    return ""


def _first(rows: Rows, is_wrong: np.ndarray) -> str:
    return rows.agents[int(np.argmax(is_wrong.reshape(len(rows), -1).any(axis=1)))]
