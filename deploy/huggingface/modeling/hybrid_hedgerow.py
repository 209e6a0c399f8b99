"""Hybrid attention in linear time and constant memory, in plain PyTorch: the student's attention of an
export wherever the operators (operators_hedgerow.py) do not compute it, and what both share.

LoLCATs (arXiv 2410.10254 eq. 6), per head, fp32 inside:
  y_i = (sum_window g exp(s_ij - m_i) v_j + sum_before phi_q(q_i).phi_k(k_j) v_j) / (the same sums without v)
with s = q.k / sqrt(D), m the maximum over the window, g = sigmoid(window_factors). Windows: sliding (the last W keys) or
terraced (own chunk of W tokens and the whole previous one, borders anchored at each row's first real token). The first S
real tokens of a row, its sinks, belong to the window of every later query and to no linear sum.

With recall_cache N, N keys a kv head that the sums recall worst stay exact too (LoLA, arXiv 2505.23666; HOLA, 2607.02303).
A row's tokens come in chunks of W from its first one on. Choice c, c = 0, 1, ...: of the kept keys and those of chunk c that
are no sinks, the N with the largest
  r_j = sum over the key maps u of the kv head of |v_j - phi_u(k_j)^T S_u / max(phi_u(k_j)^T z_u, 1e-12)|^2
stay (of equal ones the earlier); S, z are the sums over all that earlier choices dropped. Choice c is made before query
(c + 1) W (sliding) or (c + 2) W (terraced), which is where chunk c begins to leave the window. A dropped key goes into the
sums when it has left the window.

With linear_cap C, g of a query is multiplied by max(1, n / C), n the keys before its window but for sinks.

Letters: B batch, T new tokens, H query heads, G key-value heads, U heads of the key map and of the sums (H, or G where query
heads share them), D head_dim, F features, W window size, S sinks, L local length, N keys of the recall cache.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from .cache_hedgerow import LinearState, Step

LINEAR_EPSILON = 1e-12
SMALLEST_MASS = 1e-12
PURE_LINEAR_CHUNK = 64  # tokens a step where no window sets it


def repeat_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, G, ...] -> [B, heads, ...]: head h reads head h / (heads / G)."""
    return x.repeat_interleave(heads // x.shape[1], dim=1) if x.shape[1] != heads else x


def gather_tokens(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x [B, N, T, D], index int64 [B, L] -> [B, N, L, D]."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


class HybridInTorch:
    """The hybrid of one layer; the layer has the maps, the window factors and the sizes."""

    def _window_base(self, seen: torch.Tensor) -> torch.Tensor:
        """Position of the first key that is still raw after `seen` tokens; keys before it are in the sums."""
        if self.window == "none":
            return seen
        if self.window == "sliding":
            return (seen - self.window_size).clamp(min=0)
        return ((seen + self.window_size - 1) // self.window_size - 2).clamp(min=0) * self.window_size

    def _local_base(self, seen: torch.Tensor, state: LinearState | None) -> torch.Tensor:
        """Position of local token 0: the window's base; for choices the border of chunks at or before it in every row.

        That is a sliding window's: the chunk before the last query's. Its tokens before the window are no longer raw, and
        before a row's second chunk there are none (-W).
        """
        if not self.recall_cache or self.window != "sliding" or state is None:
            return self._window_base(seen)
        return (((seen - 1) // self.window_size).clamp(min=0) - 1) * self.window_size

    def _localize(self, q, k, v, state: LinearState | None, step: Step):
        """Lines each row up at local position 0 = its window base: cached raw keys, then the new tokens.

        Returns q [B, H, L, D], k, v [B, G, L, D], begin [B] (local position of the first new token) and base [B].
        What lies behind a row's last token is some real token again; causality keeps it out of everything.
        """
        length = q.shape[2]
        base = self._local_base(step.seen, state)
        begin = step.seen - base
        if step.whole and state is None:
            return q, k, v, begin, base
        cached = 0 if state is None else int(begin.max())
        local = torch.arange(cached + length, device=q.device)[None]
        new = (local - begin[:, None] + step.first[:, None]).clamp(0, length - 1)
        q_local, k_local, v_local = (gather_tokens(x, new) for x in (q, k, v))
        if cached:
            slots = (base[:, None] + local) % self.capacity
            is_cached = (local < begin[:, None])[:, None, :, None]
            k_local = torch.where(is_cached, gather_tokens(state.ring_k, slots), k_local)
            v_local = torch.where(is_cached, gather_tokens(state.ring_v, slots), v_local)
        return q_local, k_local, v_local, begin, base

    def _wide(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return repeat_heads(x.to(torch.promote_types(x.dtype, torch.float32)), heads)

    def _sinks(self, k, v, state: LinearState | None, base: torch.Tensor, known: torch.Tensor) -> list[torch.Tensor]:
        """Keys and values of the sinks, [B, G, S, D] each: from the state if before `known` [B], else from the local tokens.

        Where a row has not seen a sink yet, some other token stands for it; nothing attends to that.
        """
        sinks = torch.arange(self.num_sinks, device=k.device)[None]
        index = (sinks - base[:, None]).clamp(0, k.shape[2] - 1)
        found = [gather_tokens(x, index) for x in (k, v)]
        if state is None or not self.num_sinks:
            return found
        is_kept = (sinks < known[:, None])[:, None, :, None]
        return [torch.where(is_kept, kept, x) for kept, x in zip((state.sink_k, state.sink_v), found)]

    def _gate(self, queries: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """g of the queries at positions [B, n], [B or 1, H, n or 1, 1]; with linear_cap times max(1, keys before the window
        that are no sinks / linear_cap)."""
        gate = torch.sigmoid(self.window_factors.to(dtype))
        if not self.linear_cap:
            return gate
        keys = self._window_base(queries + 1) - self.num_sinks
        return gate * (keys.to(dtype) / self.linear_cap).clamp(min=1.0)[:, None, :, None]

    def _chunked(self, q, k, v, state: LinearState | None, base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The definition above over local positions, which begin at `base` [B], a chunk of W queries at a time: O(L (2 W + F) D).

        Returns y [B, H, L, D] and phi_k [B, U, L, F], 0 for sinks, both fp32.
        """
        length = q.shape[2]
        sink_k, sink_v = (self._wide(x, self.heads) for x in self._sinks(k, v, state, base, base))
        width = self.window_size if self.window != "none" else PURE_LINEAR_CHUNK
        pad = -length % width
        q, k, v = (F.pad(self._wide(x, self.heads), (0, 0, 0, pad)) for x in (q, k, v))
        of_state = slice(None, None, self.heads // self.key_heads)  # one of the query heads that share a state
        tokens = base[:, None] + torch.arange(length + pad, device=q.device)[None]
        sinks = torch.arange(self.num_sinks, device=q.device)
        is_sink = tokens < self.num_sinks
        phi_q = self.feature_map_q(q)
        phi_k = self.feature_map_k(k[:, of_state]).masked_fill(is_sink[:, None, :, None], 0.0)
        kv, k_sum = (0.0, 0.0) if state is None else (state.kv.to(q.dtype), state.k.to(q.dtype))
        outputs = []
        for begin in range(0, length, width):
            # Two chunks of keys: the previous one and the own one; everything earlier is in the sums.
            first = max(begin - width, 0)
            softmax, linear = self._masks(width, begin - first, q.device)
            here, keys = slice(begin, begin + width), slice(first, begin + width)
            weights = torch.zeros((), dtype=q.dtype, device=q.device)
            if linear is not None:
                chunk_phi = repeat_heads(phi_k[:, :, keys], self.heads)
                weights = F.pad((phi_q[:, :, here] @ chunk_phi.transpose(2, 3)).masked_fill(~linear, 0.0), (self.num_sinks, 0))
            if softmax is not None:
                # The sinks stand in columns of their own, wherever they are, and count in no other.
                is_seen = (sinks <= tokens[:, here, None])[:, None]
                seen = torch.cat((is_seen, softmax & ~is_sink[:, None, None, keys]), dim=-1)
                columns = torch.cat((sink_k, k[:, :, keys]), dim=2)
                scores = (q[:, :, here] @ columns.transpose(2, 3)) / math.sqrt(self.head_dim)
                scores = scores.masked_fill(~seen, float("-inf"))
                weights = weights + self._gate(tokens[:, here], q.dtype) * (scores - scores.amax(-1, keepdim=True)).exp()
            numerator, denominator = weights @ torch.cat((sink_v, v[:, :, keys]), dim=2), weights.sum(-1, keepdim=True)
            if torch.is_tensor(kv):
                numerator = numerator + phi_q[:, :, here] @ repeat_heads(kv, self.heads)
                denominator = denominator + phi_q[:, :, here] @ repeat_heads(k_sum, self.heads)[..., None]
            outputs.append(numerator / (denominator if self.window != "none" else denominator + LINEAR_EPSILON))
            if begin >= width:
                leaving = slice(first, begin)
                kv = kv + phi_k[:, :, leaving].transpose(2, 3) @ v[:, of_state, leaving]
                k_sum = k_sum + phi_k[:, :, leaving].sum(2)
        return torch.cat(outputs, dim=2)[:, :, :length], phi_k[:, :, :length]

    def _masks(self, width: int, offset: int, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """bool [W, offset + W]: softmax and linear pairs of a chunk's queries with the previous and its own keys."""
        query = torch.arange(width, device=device)[:, None] + offset
        key = torch.arange(offset + width, device=device)[None]
        causal = key <= query
        if self.window == "none":
            return None, causal
        if self.window == "terraced":
            return causal, None
        return causal & (key > query - width), causal & (key <= query - width)

    def _advance(self, phi_k, k, v, state: LinearState | None, count: torch.Tensor, base: torch.Tensor) -> LinearState:
        """The state after each row's first `count` [B] local tokens."""
        seen = base + count
        leaving = self._window_base(seen) - base  # local tokens that go into the sums
        local = torch.arange(k.shape[2], device=k.device)[None]
        kept = phi_k * (local < leaving[:, None])[:, None, :, None]
        kv, k_sum = kept.transpose(2, 3) @ self._wide(v, self.key_heads), kept.sum(2)
        if state is not None:
            kv, k_sum = kv + state.kv, k_sum + state.k
        return LinearState(kv, k_sum, *self._raw(k, v, state, seen, base, base))

    def _raw(self, k, v, state: LinearState | None, seen: torch.Tensor, base: torch.Tensor,
             known: torch.Tensor) -> list[torch.Tensor]:
        """Keys and values of the ring, and of the sinks if there are any, after `seen` [B] tokens; `known` as in _sinks."""
        # Slot s holds the last token t < seen with t mod C = s.
        slots = torch.arange(self.capacity, device=k.device)[None]
        tokens = seen[:, None] - 1 - (seen[:, None] - 1 - slots) % self.capacity
        index = (tokens - base[:, None]).clamp(0, k.shape[2] - 1)
        sinks = self._sinks(k, v, state, base, known) if self.num_sinks else []
        return [gather_tokens(k, index), gather_tokens(v, index), *sinks]

    def _chunked_with_recall(self, q, k, v, state: LinearState | None, seen: torch.Tensor, base: torch.Tensor,
                             count: torch.Tensor) -> tuple[torch.Tensor, LinearState]:
        """As _chunked, with a choice before each chunk's queries; `seen` [B] tokens before, `count` [B] new ones.

        Returns y [B, H, L, D], fp32, of which only the new tokens' counts, and the state after them.
        """
        length, width, sliding = q.shape[2], self.window_size, self.window == "sliding"
        end, pad = seen + count, -length % width
        raw = self._raw(k, v, state, end, base, seen)
        sink_k, sink_v = (self._wide(x, self.heads) for x in self._sinks(k, v, state, base, seen))
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (self._wide(q, self.heads), k, v))
        tokens = base[:, None] + torch.arange(length + pad, device=q.device)[None]
        phi_q = self.feature_map_q(q)
        now = self._empty(phi_q, k) if state is None else replace(state)
        # A sliding state comes from its first local chunk's choice, and no query there is new.
        start = width if sliding and state is not None else 0
        outputs = [torch.zeros_like(q[:, :, :start])]
        for begin in range(start, length, width):
            chosen = begin - (width if sliding else 2 * width)
            if chosen >= start:
                chunk = slice(chosen, chosen + width)
                self._choose(now, k[:, :, chunk], v[:, :, chunk], tokens[:, chunk], end > base + begin)
            first = max(begin - width, 0)
            here, keys, before = slice(begin, begin + width), slice(first, begin + width), slice(first, begin)
            softmax, linear = self._masks(width, begin - first, q.device)
            columns_k, columns_v = (
                torch.cat((sink, self._wide(recalled, self.heads), self._wide(x[:, :, keys], self.heads)), dim=2)
                for sink, recalled, x in ((sink_k, now.recalled_k, k), (sink_v, now.recalled_v, v)))
            scores = (q[:, :, here] @ columns_k.transpose(2, 3)) / math.sqrt(self.head_dim)
            scores = scores.masked_fill(~self._exact(now, tokens[:, here], tokens[:, keys], softmax), float("-inf"))
            weights = self._gate(tokens[:, here], q.dtype) * (scores - scores.amax(-1, keepdim=True)).exp()
            if linear is not None and begin:
                # Of the chunk before, what is neither chosen nor in the state's sums, as far as it has left the window.
                phi = self.feature_map_k(self._wide(k[:, :, before], self.key_heads))
                phi = self._only(phi, self._unchosen(now, tokens[:, before], self._window_base(seen)))
                pairs = phi_q[:, :, here] @ repeat_heads(phi, self.heads).transpose(2, 3)
                pairs = pairs.masked_fill(~linear[:, :width], 0.0)
                weights = weights + F.pad(pairs, (self.num_sinks + self.recall_cache, width))
            numerator, denominator = weights @ columns_v, weights.sum(-1, keepdim=True)
            numerator = numerator + phi_q[:, :, here] @ repeat_heads(now.kv, self.heads)
            denominator = denominator + phi_q[:, :, here] @ repeat_heads(now.k, self.heads)[..., None]
            outputs.append(numerator / denominator)
            if linear is not None and begin:
                left = (tokens[:, before] < self._window_base(end)[:, None])[:, None]
                self._add_features(now, self._only(phi, left), self._wide(v[:, :, before], self.key_heads))
        after = LinearState(now.kv, now.k, *raw)
        after.recalled_k, after.recalled_v, after.recalled = now.recalled_k, now.recalled_v, now.recalled
        return torch.cat(outputs, dim=2)[:, :, :length], after

    def _empty(self, phi: torch.Tensor, k: torch.Tensor) -> LinearState:
        """Sums and recall cache of no tokens, for features like phi [B, H, L, F] and keys like k [B, G, L, D]."""
        batch, features = phi.shape[0], phi.shape[-1]
        sums = phi.new_zeros(batch, self.key_heads, features, self.head_dim)
        kept = k.new_zeros(batch, self.kv_heads, self.recall_cache, self.head_dim)
        positions = torch.full(kept.shape[:3], -1, dtype=torch.int64, device=k.device)
        return LinearState(sums, sums[..., 0], kept[:, :, :0], kept[:, :, :0], None, None, kept, kept, positions)

    def _exact(self, state: LinearState, queries: torch.Tensor, keys: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """bool [B, H, n, S + N + m]: which sinks, recalled keys and raw keys at [B, m] the queries at [B, n] see by softmax.

        `window` bool [n, m]. A sink and a recalled key stand in columns of their own, except the latter while in the window.
        """
        sinks = torch.arange(self.num_sinks, device=queries.device)
        recalled, query = state.recalled[:, :, None], queries[:, None, :, None]
        seen = ((sinks <= query), (recalled >= 0) & (recalled <= query - self.window_size),
                window & (keys >= self.num_sinks)[:, None, None])
        return repeat_heads(torch.cat([x.expand(-1, self.kv_heads, -1, -1) for x in seen], dim=-1), self.heads)

    def _unchosen(self, state: LinearState, tokens: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        """bool [B, G, n]: of positions `tokens` [B, n], those from begin [B] on that are neither sinks nor recalled."""
        is_recalled = (tokens[:, None, :, None] == state.recalled[:, :, None]).any(-1)
        return ((tokens >= begin[:, None]) & (tokens >= self.num_sinks))[:, None] & ~is_recalled

    def _only(self, phi: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Features [B, U, n, F], 0 where `counts` bool [B, 1 or G, n] is not set."""
        return phi * repeat_heads(counts, self.key_heads)[..., None]

    def _choose(self, state: LinearState, k, v, tokens: torch.Tensor, due: torch.Tensor) -> None:
        """A choice in rows that are `due` bool [B], among what `state` recalls and a chunk [B, G, W, D] at `tokens` [B, W].

        Dropped keys go into the sums, but those of a sliding window's chunk later, when they leave the window. Which keys
        stay is a constant of the graph.
        """
        num, due = self.recall_cache, due[:, None, None]
        k, v = torch.cat((state.recalled_k, k), dim=2), torch.cat((state.recalled_v, v), dim=2)
        positions = torch.cat((state.recalled, tokens[:, None].expand(-1, self.kv_heads, -1)), dim=2)  # ascending
        is_candidate = positions >= self.num_sinks
        phi, wide_v = self.feature_map_k(self._wide(k, self.key_heads)), self._wide(v, self.key_heads)
        with torch.no_grad():
            scores = self._scores(state, phi, wide_v, positions).masked_fill(~is_candidate, float("-inf"))
            # Where keys are too few, empty slots stay empty: they stand before the chunk's sinks.
            stay = scores.sort(dim=-1, descending=True, stable=True).indices[..., :num]
            chosen, order = positions.gather(2, stay).sort(dim=-1)
            stay = stay.gather(2, order)
            drops = due & is_candidate.scatter(2, stay, False)
        most = num if self.window == "sliding" else num + self.window_size
        self._add_features(state, self._only(phi[:, :, :most], drops[..., :most]), wide_v[:, :, :most])
        index = stay[..., None].expand(-1, -1, -1, self.head_dim)
        state.recalled_k = torch.where(due[..., None], k.gather(2, index), state.recalled_k)
        state.recalled_v = torch.where(due[..., None], v.gather(2, index), state.recalled_v)
        state.recalled = torch.where(due, chosen, state.recalled)

    def _scores(self, state: LinearState, phi: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[B, G, n] of keys by their features [B, U, n, F], values [B, U, n, D] and positions [B, G, n]: how badly the sums
        recall each, |v - phi S / phi z|^2 over the key maps of a kv head. The largest stay. Sums of squares are rounded once,
        since a sum's order differs by a key's place, and equal keys have equal scores."""
        recalled_v = (phi @ state.kv) / (phi @ state.k[..., None]).clamp(min=SMALLEST_MASS)
        wide = torch.float32 if v.device.type == "mps" else torch.float64  # which MPS lacks
        squares = (v - recalled_v).to(wide).pow(2).sum(-1)
        return squares.unflatten(1, (self.kv_heads, -1)).sum(2).to(v.dtype)

    def _decode(self, q, k, v, state: LinearState, step: Step) -> torch.Tensor:
        """One token a row; the state advances in place. q [B, H, 1, D], k and v [B, G, 1, D]."""
        position = step.seen  # of the new token
        base = self._window_base(position + 1)
        if self.window != "none":
            if self.recall_cache:
                self._choose_from_ring(state, position)
            if self.window == "sliding" or not self.recall_cache:
                self._leave(state, self._window_base(position), base)
            slot = (position % self.capacity)[:, None, None, None].expand(-1, self.kv_heads, 1, self.head_dim)
            state.ring_k = state.ring_k.scatter(2, slot, k)
            state.ring_v = state.ring_v.scatter(2, slot, v)
        else:
            self._add(state, k, v)
        wide_q = self._wide(q, self.heads)
        phi_q = self.feature_map_q(wide_q)
        numerator = phi_q @ repeat_heads(state.kv, self.heads)
        denominator = phi_q @ repeat_heads(state.k, self.heads)[..., None]
        if self.window == "none":
            return (numerator / (denominator + LINEAR_EPSILON)).to(q.dtype)
        slots = torch.arange(self.capacity, device=q.device)[None]
        age = (position[:, None] - slots) % self.capacity
        inside = age <= (position - base)[:, None]
        window_k, window_v = state.ring_k, state.ring_v
        if self.num_sinks:
            sinks = torch.arange(self.num_sinks, device=q.device)[None]
            is_new = (sinks == position[:, None])[:, None, :, None]
            state.sink_k, state.sink_v = torch.where(is_new, k, state.sink_k), torch.where(is_new, v, state.sink_v)
            inside = torch.cat((sinks < base[:, None], inside), dim=1)  # the ring has those that are in the window yet
            window_k, window_v = torch.cat((state.sink_k, window_k), dim=2), torch.cat((state.sink_v, window_v), dim=2)
        inside = inside[:, None, None, :]
        if self.recall_cache:
            is_recalled = (state.recalled >= 0) & (state.recalled < base[:, None, None])
            inside = torch.cat((is_recalled[:, :, None], inside.expand(-1, self.kv_heads, -1, -1)), dim=-1)
            inside = repeat_heads(inside, self.heads)
            window_k = torch.cat((state.recalled_k, window_k), dim=2)
            window_v = torch.cat((state.recalled_v, window_v), dim=2)
        scores = (wide_q @ self._wide(window_k, self.heads).transpose(2, 3)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~inside, float("-inf"))
        p = self._gate(position[:, None], scores.dtype) * (scores - scores.amax(-1, keepdim=True)).exp()
        y = (numerator + p @ self._wide(window_v, self.heads)) / (denominator + p.sum(-1, keepdim=True))
        return y.to(q.dtype)

    def _choose_from_ring(self, state: LinearState, position: torch.Tensor) -> None:
        """The choice that is due before the query at `position` [B], in rows where one is."""
        width = self.window_size
        begin = position - (width if self.window == "sliding" else 2 * width)
        due = (position % width == 0) & (begin >= 0)
        if not bool(due.any()):
            return
        tokens = begin[:, None] + torch.arange(width, device=begin.device)[None]
        slots = tokens % self.capacity
        self._choose(state, gather_tokens(state.ring_k, slots), gather_tokens(state.ring_v, slots), tokens, due)

    def _leave(self, state: LinearState, begin: torch.Tensor, end: torch.Tensor) -> None:
        """Adds the raw keys begin <= t < end [B], less sinks, to the sums: one (sliding), a whole chunk (terraced), or none."""
        most = 1 if self.window == "sliding" else self.window_size
        if not bool((end > begin).any()):
            return
        tokens = begin[:, None] + torch.arange(most, device=begin.device)[None]
        slots = tokens % self.capacity
        leaves = ((tokens < end[:, None]) & (tokens >= self.num_sinks))[:, None]
        if self.recall_cache:
            leaves = leaves & self._unchosen(state, tokens, begin)
        self._add(state, gather_tokens(state.ring_k, slots), gather_tokens(state.ring_v, slots), leaves)

    def _add(self, state: LinearState, k: torch.Tensor, v: torch.Tensor, counts: torch.Tensor | None = None) -> None:
        """Adds n keys and values [B, G, n, D] to the sums: all, or those that `counts` bool [B, 1 or G, n] marks."""
        phi = self.feature_map_k(self._wide(k, self.key_heads))
        phi = phi if counts is None else self._only(phi, counts)
        self._add_features(state, phi, self._wide(v, self.key_heads))

    @staticmethod
    def _add_features(state: LinearState, phi: torch.Tensor, v: torch.Tensor) -> None:
        """Adds n keys by their features [B, U, n, F], and their values [B, U, n, D], to the sums."""
        state.kv, state.k = state.kv + phi.transpose(2, 3) @ v, state.k + phi.sum(2)
