"""Finds how many calls a server without rate limits should have in flight: the knee, by trial.

More concurrency is worthwhile while it brings more work per second. So the limit is moved a step up
or down, and the work per second at both levels is compared (perturb and observe; Kiefer and
Wolfowitz 1952). With `limit` calls always in flight, work per second is limit / latency (Little's
law). Hence for a step from `a` to `b`,

    gain = d ln(work) / d ln(limit) = 1 + ln(latency_a / latency_b) / ln(b / a)

is 1 if the work grows in proportion to the step, and 0 if the added calls only queue. Latency alone
does not show this: a batching server gets slower with every call but still does more work
(docs/decisions/0011). Latencies are compared at one answer length, on a line fitted through (size,
latency), so that long answers are not mistaken for queueing.

  state      limit              leaves the state
  climbing   up 1 per answer    at the level before the server stopped answering, to standing
  standing   the level          after its rounds of rest, to trying
  trying     level * or / step  won: the level moves, the same direction is tried again, to trying
                                lost: back to the level, the other direction next, to standing
  any        -                  refused: cut, to standing; no answer since the last cut: to climbing
"""

from __future__ import annotations

import math

import msgspec

from redline.errors import ConfigError

# The gain that a step up must have, and that a step down may lose. 0.2 distinguishes a queue (0)
# from a batch that still fills (0.3 to 1); within the band around it, the limit does not move.
_LEAST_GAIN = 0.2
_BAND = 0.05
# A step is a ratio: large while nothing is known, then as fine as the noise allows. A step below
# 1.1 would be lost in the noise; a step above 1.6, once the knee is found, would make the limit
# swing.
_FIRST_STEP = 2.0
_FINEST_STEP = 1.1
_COARSEST_STEP = 1.6
_SEARCH_STEP = 1.3
# Steps up grow by this power once two of them have won, or one has had at least _WHOLE_GAIN.
_GROWTH = 1.5
_WHOLE_GAIN = 0.8
# Answers in a round: one per slot for a large step, two for a fine step, whose effect is small; but
# at least enough for a mean.
_LARGE_STEP = 1.4
_LEAST_ANSWERS_LARGE = 16
_LEAST_ANSWERS_FINE = 30
# The most rounds of rest between two tries, once the knee is found.
_MOST_REST = 6
# When the limit rises, the server reads the prompts of all new calls at once. Meanwhile, a quarter
# as many answers as there are new calls are ignored.
_SETTLING_SHARE = 0.25
# With fewer calls in flight than this share of the limit, something else holds the run back.
_FULL_SHARE = 0.7
# A latency that changes by a fifth and by four standard errors at one limit means that the server
# has changed.
_CHANGE = 0.2
# A larger gain cannot come from the concurrency: something else has changed, so try again.
_ODD_GAIN = 1.5
# Up to this doubt (a standard error of the gain), only the evidence decides. Above it, the higher
# level is favoured: a level that is too low costs work, a level that is too high only latency.
_CLEAR_DOUBT = 0.2
_MOST_DOUBT = 0.9
# A refusal cuts the limit to this share of the calls in flight, or to half of the level if no call
# was answered since the last cut. The refused level is retried after this many answers per slot,
# and after twice as many each time it is refused again: at most one refusal in 20 * limit answers.
_CUT = 0.9
_HARD_CUT = 0.5
_FIRST_HOLD = 20
_MOST_HOLD = 320


class _Round(msgspec.Struct, eq=False):
    """Sums over the answered calls that were written since `began_s`, to fit latency = f(size).

    x: output tokens. y: latency in seconds.
    """

    began_s: float
    answers: int = 0
    in_flight: int = 0
    x: int = 0
    xx: int = 0
    y: float = 0.0
    yy: float = 0.0
    xy: float = 0.0

    def add(self, latency_s: float, size: int, in_flight: int) -> None:
        self.answers += 1
        self.in_flight += in_flight
        self.x += size
        self.xx += size * size
        self.y += latency_s
        self.yy += latency_s * latency_s
        self.xy += latency_s * size

    def join(self, other: _Round) -> None:
        """Adds another round at the same limit."""
        for name in ("answers", "in_flight", "x", "xx", "y", "yy", "xy"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def latency_at(self, size: float) -> tuple[float, float]:
        """Returns the seconds that an answer of `size` takes, and the variance of their logarithm.

        By least squares; the mean if sizes are unknown or all equal, or if the line is not above 0.
        """
        n = self.answers
        mean_x, mean_y = self.x / n, self.y / n
        var_x = self.xx / n - mean_x * mean_x
        var_y = max(0.0, self.yy / n - mean_y * mean_y)
        if var_x > 1e-9 * mean_x * mean_x:
            covariance = self.xy / n - mean_x * mean_y
            slope = covariance / var_x
            latency_s = mean_y + slope * (size - mean_x)
            if latency_s > 0:
                rest = max(0.0, var_y - slope * covariance)
                spread = rest * (1 + (size - mean_x) ** 2 / var_x)
                return latency_s, spread / n / latency_s**2
        return mean_y, var_y / n / mean_y**2 if mean_y > 0 else 0.0

    def slower_than(self, other: _Round) -> tuple[float, float]:
        """Returns the logarithm of this round's latency over the other's, and its standard error.

        Both latencies are taken at the common mean size. 0 if one is too short to be measured,
        because no calls queue then.
        """
        size = (self.x + other.x) / (self.answers + other.answers)
        own_s, own_variance = self.latency_at(size)
        other_s, other_variance = other.latency_at(size)
        if own_s <= 0 or other_s <= 0:
            return 0.0, 0.0
        return math.log(own_s / other_s), math.sqrt(own_variance + other_variance)


class AdaptiveConcurrency:
    """Finds how many calls to one server may be in flight: moves `limit` to the knee. Never waits.

    least, most: bounds of `limit`, at least 1. first: the initial limit, moved into the bounds.
    Raises ConfigError for bounds that contradict each other.
    """

    def __init__(self, *, least: int = 1, most: int = 1000, first: int = 8) -> None:
        if not 1 <= least <= most:
            raise ConfigError(
                f"concurrency cannot be between {least} and {most}",
                hint="the lower bound must be at least 1, and not above the upper bound",
            )
        self.limit = min(max(first, least), most)
        self._least = least
        self._most = most
        self._level = self.limit
        self._stood: _Round | None = None
        self._round = _Round(-math.inf)
        self._latest_s = -math.inf
        self._settling = 0
        self._rest = self._rests = 1
        self._is_up = True
        self._is_longer = False
        self._earlier_gain: float | None = None
        self._step = _FIRST_STEP
        self._wins = 0
        self._has_turned = False
        self._wall = most + 1
        self._hold = _FIRST_HOLD
        self._held_answers = 0
        self._cut_s = -math.inf
        self._has_answered = True
        self._climb_to = 0

    @property
    def found(self) -> int | None:
        """The best limit so far, not one that is being tried.

        None until a try has brought no gain or had no room, or a refusal has cut the limit.
        """
        return self._level if self._has_turned or self._cut_s > -math.inf else None

    def ended(
        self,
        *,
        now_s: float,
        latency_s: float,
        in_flight: int,
        is_overload: bool,
        size: int = 0,
    ) -> None:
        """Records one call that has ended, and sets `limit`.

        latency_s: from the write to the end of the answer. in_flight: calls in flight when this
        call was written, including itself. is_overload: True for a 429, 503, 529 or timeout; do not
        report other failures, or a row's own deadline. size: output tokens, 0 if unknown.
        """
        if now_s < self._latest_s:
            # The clock was set back: later times cannot be compared with earlier ones.
            self._cut_s = -math.inf
            self._stand(now_s)
        self._latest_s = now_s
        written_s = now_s - latency_s
        if is_overload:
            # Calls written before the last cut caused that cut, and must not cause another one.
            if written_s >= self._cut_s:
                self._refused(now_s, in_flight)
            return
        self._has_answered = True
        self._held_answers = max(0, self._held_answers - 1)
        if self._level < self._climb_to:
            self._level += 1
            self._stand(now_s)
            return
        self._climb_to = 0
        if self._settling > 0:
            self._settling -= 1
            self._round.began_s = now_s
        elif written_s >= self._round.began_s:
            self._round.add(latency_s, size, in_flight)
            if self._round.answers >= self._needed_answers():
                self._judge(now_s)

    def _needed_answers(self) -> int:
        if self._step >= _LARGE_STEP:
            needed = max(_LEAST_ANSWERS_LARGE, self.limit)
        else:
            needed = max(_LEAST_ANSWERS_FINE, 2 * self.limit)
        return 2 * needed if self._is_longer else needed

    def _judge(self, now_s: float) -> None:
        """Judges a finished round."""
        done = self._round
        if done.in_flight < _FULL_SHARE * self.limit * done.answers:
            self._rest = 1
            self._stand(now_s)
            return
        if self.limit >= self._wall:
            self._wall, self._hold = self._most + 1, _FIRST_HOLD
        if self.limit != self._level:
            self._judge_try(done, now_s)
            return
        if self._stood is None:
            self._stood = done
        elif self._has_changed(self._stood, done):
            # This round includes calls from before and after the change, so it measures neither.
            self._rest, self._rests = 2, 1
            self._stand(now_s)
            return
        else:
            self._stood.join(done)
        self._rest -= 1
        if self._rest > 0:
            self._round = _Round(now_s)
        else:
            self._try(now_s)

    def _judge_try(self, tried: _Round, now_s: float) -> None:
        assert self._stood is not None
        ratio = math.log(self.limit / self._level)
        slower, noise = tried.slower_than(self._stood)
        # The gain of the step to `limit`, and its standard error.
        gain, doubt = 1 - slower / ratio, noise / abs(ratio)
        is_clear = abs(gain - _LEAST_GAIN) > doubt
        if self._is_up and self._earlier_gain is not None:
            gain = (gain + max(-0.5, self._earlier_gain)) / 2
        over = gain - _LEAST_GAIN + max(0.0, min(doubt, _MOST_DOUBT) - _CLEAR_DOUBT)
        lead = (over if self._is_up else -over) - _BAND
        if 0 < lead < doubt and not self._is_longer:
            self._is_longer = True
            return
        self._is_longer = False
        if self._earlier_gain is None and self._is_doubtful(gain, lead):
            self._earlier_gain = gain
            self._rest = 1
            self._stand(now_s)
            return
        self._earlier_gain = None
        if lead > 0:
            self._level = self.limit
            self._stood = tried
            self._wins += 1
            self._rests = 1
            if self._is_up and (self._wins > 1 or gain > _WHOLE_GAIN):
                # Only upwards: a step too far down costs work, a step too far up only latency.
                self._step = min(_FIRST_STEP, self._step**_GROWTH)
            self._try(now_s)
        else:
            self._turn(now_s, noise, is_clear=is_clear)

    def _has_changed(self, before: _Round, after: _Round) -> bool:
        """Returns whether the server's speed at one limit has changed; if so, sets the next try."""
        slower, doubt = after.slower_than(before)
        if abs(slower) < max(_CHANGE, 4 * doubt):
            return False
        self._is_up = slower < 0
        self._step = max(self._step, _SEARCH_STEP)
        return True

    def _is_doubtful(self, gain: float, lead: float) -> bool:
        """Returns whether the try must be repeated before it counts."""
        if self._is_up:
            # A loss would end the search here, but may be due to a slow moment of the server.
            return lead <= 0 and self._step >= _FIRST_STEP
        return abs(gain) > _ODD_GAIN

    def _try(self, now_s: float) -> None:
        """Sets the limit one step from the level; turns around if there is no room."""
        level = self._level
        if self._is_up:
            top = self._most if self._held_answers == 0 else min(self._most, self._wall - 1)
            target = min(max(level + 1, round(level * self._step)), top)
            # The room below a refused level may be too small to show a difference.
            has_room = target > level and not (top < self._most and target < level * 1.05)
        else:
            target = max(min(level - 1, round(level / self._step)), self._least)
            has_room = target < level
        if not has_room:
            self._turn(now_s, 0.0, is_clear=True)
            return
        self.limit = target
        self._round = _Round(now_s)
        self._settling = max(0, math.ceil((target - level) * _SETTLING_SHARE))

    def _turn(self, now_s: float, noise: float, *, is_clear: bool) -> None:
        """Goes back to the level; next, tries the other direction, in finer steps if both lost."""
        self._is_up = not self._is_up
        if self._wins or self._has_turned:
            self._step = math.sqrt(self._step)
        self._wins, self._has_turned = 0, True
        finest = min(_COARSEST_STEP, max(_FINEST_STEP, math.exp(1.5 * noise)))
        self._step = max(self._step, finest)
        is_found = self._step < _SEARCH_STEP and is_clear
        self._rests = min(_MOST_REST, 2 * self._rests) if is_found else 1
        self._rest = self._rests
        self._stand(now_s)

    def _stand(self, now_s: float) -> None:
        self.limit = self._level
        self._is_longer = False
        self._stood = None
        self._settling = 0
        self._round = _Round(now_s)

    def _refused(self, now_s: float, in_flight: int) -> None:
        if self._has_answered:
            wall = min(max(in_flight, self._least + 1), self.limit + 1)
            is_known = 0.9 * self._wall <= wall <= 1.1 * self._wall
            self._hold = min(2 * self._hold, _MOST_HOLD) if is_known else _FIRST_HOLD
            self._wall, self._held_answers = wall, self._hold * wall
            is_fine = self.limit != self._level and self._level < wall and self._step < _LARGE_STEP
            if not is_fine:
                # The refused limit was not a small step above a good level: the level itself is too
                # high.
                self._level = max(self._least, min(self.limit - 1, int(_CUT * wall)))
            self._climb_to = self._level
        else:
            self._level = max(self._least, int(_HARD_CUT * self._level))
        self._has_answered = False
        self._cut_s = now_s
        self._step = _FINEST_STEP
        self._is_up = True
        self._wins, self._has_turned = 0, False
        self._earlier_gain = None
        self._rest = self._rests = 1
        self._stand(now_s)
