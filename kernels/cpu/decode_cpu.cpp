// A step reads sinks and window (<= 2 W keys), the states (F x D) and one token a head: (2 W + F) D
// multiply-adds a query head, and the bytes of states and window once. Between steps: tokens that
// leave the window join (S, z), one at a time (sliding) or a chunk at once (terraced); before =
// window_begin(last token) says which have. With a recall cache a choice comes first, once a chunk.
#include "kernels/cpu/decode_cpu.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/cpu/hybrid_head_cpu.hpp"
#include "kernels/cpu/recall_cpu.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels::cpu {
namespace {

constexpr std::int64_t kFlushTokens = 64;

// One thread's walk over (row, kv head) tasks.
class DecodeHead {
 public:
  DecodeHead(const TiledProblem& problem, const DecodeState& state)
      : problem_(problem),
        state_(state),
        slots_(state.window_k.size(2)),
        width_(padded(problem.shape.D)),
        lanes_(padded(std::max<std::int64_t>(problem.shape.group(), 1))),
        map_q_(problem, problem.map_q, problem.key_group() * kLanePad),
        map_k_(problem, problem.map_k, kFlushTokens),
        num_sinks_(state.sink_k.defined() ? state.sink_k.size(2) : 0),
        num_recalled_(state.recall_k.defined() ? state.recall_k.size(2) : 0),
        keys_(std::max(num_sinks_ + num_recalled_ + slots_, kFlushTokens) * width_),
        values_(std::max(num_sinks_ + num_recalled_ + slots_, kFlushTokens) * width_),
        phi_(problem.F * std::max(kFlushTokens, problem.key_group() * kLanePad)),
        kv_state_(problem.key_heads_of_kv() * problem.F * width_),
        q_(lanes_ * width_),
        q_transposed_(problem.shape.D * lanes_),
        weights_((num_sinks_ + num_recalled_ + slots_) * lanes_),
        y_(lanes_ * width_),
        sums_(4 * lanes_),
        masses_(problem.key_group() * kLanePad) {
    if (num_recalled_ > 0) recall_.emplace(problem);
  }

  void select(std::int64_t b, std::int64_t g) {
    b_ = b;
    g_ = g;
  }

  // A prompt's choices, and what left its window: k, v [B, G, T, D].
  void recall_prompt(const at::Tensor& k, const at::Tensor& v, std::int64_t length) {
    const std::int64_t W = problem_.options.window_size;
    const std::int64_t choices = choices_at(length - 1);
    begin_recall();
    for (std::int64_t choice = 0; choice < choices; ++choice) {
      const std::int64_t first = choice * W;
      if (slides() && choice > 0) recall_->fold_left(first - W, first);
      for (std::int64_t i = 0; i < W; ++i) {
        widen(k, b_, g_, first + i, recall_->chunk_k() + i * width_);
        widen(v, b_, g_, first + i, recall_->chunk_v() + i * width_);
      }
      recall_->choose(first);
    }
    if (slides() && choices > 0) recall_->fold_left((choices - 1) * W, begin_after(length));
    end_recall();
  }

  // What comes before the key of the token at `position` is written to the ring: the choice where a
  // chunk begins, and a sliding window's token that leaves.
  void recall_before(std::int64_t position) {
    const std::int64_t W = problem_.options.window_size, chunk = choices_at(position) - 1;
    const bool chooses = position % W == 0 && chunk >= 0;
    if (!chooses && (!slides() || position < W)) return;
    begin_recall();
    if (chooses) {
      for (std::int64_t i = 0; i < W; ++i) {
        const std::int64_t slot = (chunk * W + i) % slots_;
        widen(state_.window_k, b_, g_, slot, recall_->chunk_k() + i * width_);
        widen(state_.window_v, b_, g_, slot, recall_->chunk_v() + i * width_);
      }
      recall_->choose(chunk * W);
    }
    if (const std::int64_t leaving = position - W;
        slides() && leaving >= num_sinks_ && !recall_->holds(leaving)) {
      widen(state_.window_k, b_, g_, leaving % slots_, keys_.data());
      widen(state_.window_v, b_, g_, leaving % slots_, values_.data());
      recall_->fold(keys_.data(), values_.data());
    }
    end_recall();
  }

  [[nodiscard]] std::int64_t begin_after(std::int64_t tokens) const {
    return tokens == 0
               ? 0
               : window_begin(problem_.options.window, problem_.options.window_size, tokens - 1);
  }

  // The first of tokens first, first + 1, ... that can join the state.
  [[nodiscard]] std::int64_t behind_sinks(std::int64_t first) const {
    return std::max(first, num_sinks_);
  }

  // Copies tokens first..last of the ring, in their order, to rows `at`, at + 1, ... of keys_ and
  // values_.
  void read_ring(std::int64_t first, std::int64_t last, std::int64_t at) {
    for (std::int64_t token = first; token < last; ++token, ++at) {
      widen(state_.window_k, b_, g_, token % slots_, keys_.data() + at * width_);
      widen(state_.window_v, b_, g_, token % slots_, values_.data() + at * width_);
    }
  }

  void read_prompt(const at::Tensor& k,
                   const at::Tensor& v,
                   std::int64_t first,
                   std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      widen(k, b_, g_, token, keys_.data() + (token - first) * width_);
      widen(v, b_, g_, token, values_.data() + (token - first) * width_);
    }
  }

  // (S, z) of the kv head's key heads += phi_k [v, 1] of `tokens` <= kFlushTokens rows of keys_
  // and values_.
  void flush(std::int64_t tokens) {
    const Rows keys{keys_.data(), width_};
    const std::int64_t ld = padded(tokens);
    const std::int64_t of_kv = problem_.key_heads_of_kv();
    for (std::int64_t u = g_ * of_kv; u < (g_ + 1) * of_kv; ++u) {
      map_k_.select_head(u);
      map_k_.features(keys, 0, tokens, nullptr, phi_.data(), ld);
      add_row_sums(phi_.data(), ld, problem_.F, tokens, nullptr, k_state(u));
      float* state = load_state(u, kv_state_.data());
      multiply(problem_.products,
               {problem_.F, problem_.shape.D, tokens},
               as_stored(phi_.data(), ld),
               {values_.data(), width_},
               state,
               width_,
               true);
      store_state(u, kv_state_.data());
    }
  }

  void insert(const at::Tensor& k, const at::Tensor& v, std::int64_t token, std::int64_t position) {
    copy_row(k, token, state_.window_k, position % slots_);
    copy_row(v, token, state_.window_v, position % slots_);
    keep_sink(k, v, token, position);
  }

  // The token's key and value where it is a sink.
  void keep_sink(const at::Tensor& k,
                 const at::Tensor& v,
                 std::int64_t token,
                 std::int64_t position) {
    if (position < num_sinks_) {
      copy_row(k, token, state_.sink_k, position);
      copy_row(v, token, state_.sink_v, position);
    }
  }

  // y of the kv head's query heads for the token at `position`, whose key is already in the ring.
  void attend(const at::Tensor& q, std::int64_t position, const at::Tensor& y) {
    const std::int64_t D = problem_.shape.D, group = problem_.shape.group(),
                       first_head = g_ * group;
    const std::int64_t begin = begin_after(position + 1);
    float* window_sums = sums_.data();
    float* linear_sums = sums_.data() + 2 * lanes_;
    sums_.clear();
    std::fill(y_.data(), y_.data() + group * width_, 0.0F);
    for (std::int64_t r = 0; r < group; ++r) {
      widen(q, b_, first_head + r, 0, q_.data() + r * width_);
    }
    if (problem_.windowed()) {
      attend_window(begin, position + 1, window_sums);
    }
    if (begin > 0) {
      for (std::int64_t u = 0; u < problem_.key_heads_of_kv(); ++u) {
        attend_state(u, linear_sums);
      }
    }
    for (std::int64_t r = 0; r < group; ++r) {
      const float epsilon = problem_.windowed() ? 0.0F : static_cast<float>(kLinearEpsilon);
      const float inverse = 1.0F / (window_sums[r] + linear_sums[r] + epsilon);
      auto* to =
          static_cast<char*>(y.data_ptr()) + (b_ * y.stride(0) + (first_head + r) * y.stride(1)) *
                                                 static_cast<std::int64_t>(y.element_size());
      narrow_rows(y_.data() + r * width_, width_, 1, D, &inverse, to, y.scalar_type(), D);
    }
  }

 private:
  // Queries of the group are the lanes. y_ = g sum e^(s - m) v and window_sums = g sum e^(s - m)
  // over the tokens begin .. end, and the sinks and the cache's tokens before them.
  void attend_window(std::int64_t begin, std::int64_t end, float* window_sums) {
    const std::int64_t D = problem_.shape.D, group = problem_.shape.group();
    std::int64_t before = std::min(num_sinks_, begin);
    for (std::int64_t token = 0; token < before; ++token) {
      widen(state_.sink_k, b_, g_, token, keys_.data() + token * width_);
      widen(state_.sink_v, b_, g_, token, values_.data() + token * width_);
    }
    before = read_recalled(begin, before);
    read_ring(begin, end, before);
    const std::int64_t keys = before + end - begin;
    transpose(q_.data(), width_, group, D, q_transposed_.data(), lanes_);
    multiply(problem_.products,
             {keys, group, D},
             as_stored(keys_.data(), width_),
             {q_transposed_.data(), lanes_},
             weights_.data(),
             lanes_,
             false);
    const float* of_heads = problem_.gate.const_data_ptr<float>() + g_ * group;
    const float gain = window_gain(problem_.options, end - 1);
    float* gates = window_sums + 3 * lanes_;
    for (std::int64_t r = 0; r < group; ++r) gates[r] = of_heads[r] * gain;
    const TileMask everything{0, 0, -kNoLag, kNoLag};
    const float scale = 1.0F / std::sqrt(static_cast<float>(D));
    float* maxima = window_sums + lanes_;
    window_weights(weights_.data(),
                   lanes_,
                   keys,
                   lanes_,
                   everything,
                   scale,
                   gates,
                   weights_.data(),
                   maxima,
                   window_sums);
    multiply(problem_.products,
             {group, D, keys},
             transposed(weights_.data(), lanes_),
             {values_.data(), width_},
             y_.data(),
             width_,
             false);
  }

  // Adds the state's share for the query heads that share the kv head's key head u: y_ += phi_q S
  // and linear_sums = phi_q . z. A head's features lie in lane 0 of its own kLanePad lanes, so that
  // the state is read once for all of them.
  void attend_state(std::int64_t u, float* linear_sums) {
    const std::int64_t R = problem_.key_group(), ld = R * kLanePad, first = u * R;
    const std::int64_t key_head = g_ * problem_.key_heads_of_kv() + u;
    for (std::int64_t r = 0; r < R; ++r) {
      map_q_.select_head(key_head * R + r);
      map_q_.features({q_.data() + (first + r) * width_, width_},
                      0,
                      1,
                      nullptr,
                      phi_.data() + r * kLanePad,
                      ld);
    }
    column_sums(phi_.data(), ld, problem_.F, ld, k_state(key_head), masses_.data(), false);
    multiply(problem_.products,
             {R, problem_.shape.D, problem_.F},
             Left{phi_.data(), kLanePad, ld},
             {load_state(key_head, kv_state_.data()), width_},
             y_.data() + first * width_,
             width_,
             true);
    for (std::int64_t r = 0; r < R; ++r) {
      linear_sums[first + r] = masses_.data()[r * kLanePad];
    }
  }

  // Copies the cache's tokens before `begin` to rows `at`, at + 1, ...; the row behind them.
  std::int64_t read_recalled(std::int64_t begin, std::int64_t at) {
    if (num_recalled_ == 0) return at;
    const std::int64_t* positions = recall_positions();
    for (std::int64_t slot = 0; slot < num_recalled_; ++slot) {
      if (positions[slot] < 0 || positions[slot] >= begin) continue;
      widen(state_.recall_k, b_, g_, slot, keys_.data() + at * width_);
      widen(state_.recall_v, b_, g_, slot, values_.data() + at * width_);
      ++at;
    }
    return at;
  }

  static constexpr std::int64_t kLanePad = padded(1);

  [[nodiscard]] bool slides() const { return problem_.options.window == WindowLayout::kSliding; }
  // How many choices count for the token at `position`.
  [[nodiscard]] std::int64_t choices_at(std::int64_t position) const {
    return std::max<std::int64_t>(
        0, choice_of_chunk(problem_, position / problem_.options.window_size) + 1);
  }
  void begin_recall() {
    recall_->load(g_, recall_positions(), state_.recall_k[b_][g_], state_.recall_v[b_][g_]);
    for (std::int64_t i = 0; i < problem_.key_heads_of_kv(); ++i) {
      const std::int64_t u = g_ * problem_.key_heads_of_kv() + i;
      recall_->use_state(i, load_state(u, room_for(i)), k_state(u));
    }
  }
  void end_recall() {
    recall_->store(recall_positions(), state_.recall_k[b_][g_], state_.recall_v[b_][g_]);
    for (std::int64_t i = 0; i < problem_.key_heads_of_kv(); ++i) {
      store_state(g_ * problem_.key_heads_of_kv() + i, room_for(i));
    }
  }
  float* room_for(std::int64_t i) { return kv_state_.data() + i * problem_.F * width_; }
  [[nodiscard]] std::int64_t* recall_positions() const {
    return state_.recall_positions.data_ptr<std::int64_t>() +
           (b_ * problem_.shape.G + g_) * num_recalled_;
  }

  // S of one key head with rows of whole vectors: in place where D fills them, else in `room`.
  float* load_state(std::int64_t u, float* room) {
    float* state = state_.kv_state.data_ptr<float>() +
                   (b_ * problem_.key_heads + u) * problem_.F * problem_.shape.D;
    if (width_ == problem_.shape.D) {
      return state;
    }
    widen_rows(state, at::kFloat, problem_.shape.D, problem_.F, problem_.shape.D, room, width_);
    return room;
  }
  void store_state(std::int64_t u, const float* room) {
    if (width_ != problem_.shape.D) {
      float* state = state_.kv_state.data_ptr<float>() +
                     (b_ * problem_.key_heads + u) * problem_.F * problem_.shape.D;
      narrow_rows(
          room, width_, problem_.F, problem_.shape.D, nullptr, state, at::kFloat, problem_.shape.D);
    }
  }
  float* k_state(std::int64_t u) {
    return state_.k_state.data_ptr<float>() + (b_ * problem_.key_heads + u) * problem_.F;
  }

  void widen(const at::Tensor& x, std::int64_t b, std::int64_t head, std::int64_t row, float* out) {
    const std::int64_t offset = b * x.stride(0) + head * x.stride(1) + row * x.stride(2);
    const auto* from = static_cast<const char*>(x.const_data_ptr()) +
                       offset * static_cast<std::int64_t>(x.element_size());
    widen_rows(from, x.scalar_type(), problem_.shape.D, 1, problem_.shape.D, out, width_);
  }

  void copy_row(const at::Tensor& from,
                std::int64_t token,
                const at::Tensor& ring,
                std::int64_t slot) {
    const auto bytes = static_cast<std::int64_t>(ring.element_size());
    const std::int64_t source = b_ * from.stride(0) + g_ * from.stride(1) + token * from.stride(2);
    const std::int64_t target = b_ * ring.stride(0) + g_ * ring.stride(1) + slot * ring.stride(2);
    std::memcpy(static_cast<char*>(ring.data_ptr()) + target * bytes,
                static_cast<const char*>(from.const_data_ptr()) + source * bytes,
                static_cast<std::size_t>(problem_.shape.D * bytes));
  }

  const TiledProblem& problem_;
  const DecodeState& state_;
  std::int64_t slots_, width_, lanes_, b_ = 0, g_ = 0;
  TileMap map_q_, map_k_;
  std::int64_t num_sinks_, num_recalled_;
  std::optional<RecallHead> recall_;
  Scratch keys_, values_, phi_, kv_state_, q_, q_transposed_, weights_, y_, sums_, masses_;
};

template <typename Task>
void for_each_head(const TiledProblem& problem, const DecodeState& state, const Task& task) {
  at::parallel_for(
      0, problem.shape.B * problem.shape.G, 1, [&](std::int64_t begin, std::int64_t end) {
        const ProductsScope scope(problem.products);
        DecodeHead head(problem, state);
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t b = i / problem.shape.G;
          head.select(b, i % problem.shape.G);
          task(head, b, state.positions.const_data_ptr<std::int64_t>()[b]);
        }
      });
}

}  // namespace

void prefill_state_cpu(const at::Tensor& k,
                       const at::Tensor& v,
                       const HybridParameters& parameters,
                       const HybridOptions& options,
                       const DecodeState& state) {
  // Queries play no part; any tensor of the right number of heads gives the problem its shape.
  const std::int64_t num_heads = num_query_heads(parameters, state.kv_state.size(1));
  const at::Tensor heads = k.select(1, 0).unsqueeze(1).expand({-1, num_heads, -1, -1});
  const TiledProblem problem = on_cpu(make_hybrid_problem(heads, k, v, parameters, options));
  for_each_head(problem, state, [&](DecodeHead& head, std::int64_t, std::int64_t length) {
    const std::int64_t begin = head.begin_after(length);
    const bool recalls = options.recall_cache > 0;
    if (recalls) head.recall_prompt(problem.k, problem.v, length);
    for (std::int64_t first = head.behind_sinks(0); first < begin && !recalls;
         first += kFlushTokens) {
      const std::int64_t last = std::min(first + kFlushTokens, begin);
      head.read_prompt(problem.k, problem.v, first, last);
      head.flush(last - first);
    }
    for (std::int64_t token = 0; token < std::min(begin, options.num_sinks); ++token) {
      head.keep_sink(problem.k, problem.v, token, token);
    }
    for (std::int64_t token = begin; token < length; ++token) {
      head.insert(problem.k, problem.v, token, token);
    }
  });
}

at::Tensor decode_step_cpu(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           const HybridParameters& parameters,
                           const HybridOptions& options,
                           const DecodeState& state) {
  const TiledProblem problem = on_cpu(
      make_hybrid_problem(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), parameters, options));
  const at::Tensor y = at::empty(q.sizes(), q.options());
  const bool recalls = options.recall_cache > 0;
  for_each_head(problem, state, [&](DecodeHead& head, std::int64_t, std::int64_t position) {
    // Without a window a token goes straight to the state; with one, what leaves must be read
    // before its slot is reused.
    if (!problem.windowed()) {
      head.insert(problem.k, problem.v, 0, position);
    }
    if (recalls) head.recall_before(position);
    const std::int64_t leaving = head.behind_sinks(head.begin_after(position)),
                       staying = head.begin_after(position + 1);
    for (std::int64_t first = leaving; first < staying && !recalls; first += kFlushTokens) {
      const std::int64_t last = std::min(first + kFlushTokens, staying);
      head.read_ring(first, last, 0);
      head.flush(last - first);
    }
    if (problem.windowed()) {
      head.insert(problem.k, problem.v, 0, position);
    }
    head.attend(problem.q, position, y);
  });
  state.positions.add_(1);
  return y;
}

}  // namespace hedgerow::kernels::cpu
