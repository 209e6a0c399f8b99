// Attention of one head in plain C++20: softmax, linear attention (bidirectional, and causal as a
// stream), the window hybrid of LoLCATs, positive random features, and the exponential's series as
// a sum of recurrences. Needs the standard library alone, so that it can be copied or installed
// (hedgerow::plain), and is written to be read.
//
// Shapes: T tokens, D head_dim, E columns of v, F features, all rows contiguous (`Rows`), one head
// a call. Real is float or double and follows from y; sums are in Real, in the order of the keys.
// y must not overlap an input. Memory is taken before the tokens are walked and never while they
// are. Every function and constructor throws std::invalid_argument, naming what does not fit with
// what was expected and what was found, before it writes. No state is shared: any thread.
//
// Sources: 003 = "Efficient Attention Mechanisms" (its three programs are in examples/); LoLCATs,
// arXiv 2410.10254; FAVOR+, arXiv 2009.14794; the series, arXiv 2507.23632.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace hedgerow::plain {

// Beside the denominator of linear attention without a window (003; the kernels' kLinearEpsilon).
inline constexpr double kLinearEpsilon = 1e-12;

// The largest order of a series, which is the paper's.
inline constexpr std::size_t kMaxSeriesOrder = 10;

// Monomials that a series may hold for each column of v: D = 8 has 43,758 of them at order 10,
// D = 64 already 814,385 at order 4 and 7e11 at order 10.
inline constexpr std::size_t kMaxMonomials = std::size_t{1} << 24;

// A matrix that the caller owns, row after row.
template <typename Element>
class Rows {
 public:
  // Throws unless the values are whole rows of at least one column.
  Rows(std::span<Element> values, std::size_t columns) : values_(values), columns_(columns) {
    if (columns == 0 || values.size() % columns != 0) {
      throw std::invalid_argument("rows: expected whole rows of " + std::to_string(columns) +
                                  " columns, found " + std::to_string(values.size()) + " values");
    }
  }
  // Values that may be written are values that may be read.
  template <typename Written>
  requires std::same_as<const Written, Element> Rows(const Rows<Written>& other)
      : values_(other.values()), columns_(other.columns()) {}

  [[nodiscard]] std::size_t size() const { return values_.size() / columns_; }
  [[nodiscard]] std::size_t columns() const { return columns_; }
  [[nodiscard]] std::span<Element> values() const { return values_; }
  [[nodiscard]] std::span<Element> operator[](std::size_t row) const {
    return values_.subspan(row * columns_, columns_);
  }

 private:
  std::span<Element> values_;
  std::size_t columns_;
};

// Arguments that are read. Real is not deduced from them, so that Rows<Real> converts.
template <typename Real>
using In = std::type_identity_t<Rows<const Real>>;
template <typename Real>
using InSpan = std::type_identity_t<std::span<const Real>>;

enum class Mask { kBidirectional, kCausal };

enum class Window { kSliding, kTerraced };

// Whose features: positive random ones differ between the sides.
enum class Side { kQuery, kKey };

namespace detail {

inline void expect_equal(const char* what, std::size_t expected, std::size_t found) {
  if (expected != found) {
    throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(expected) +
                                ", found " + std::to_string(found));
  }
}

template <std::floating_point Real>
Real dot(std::span<const Real> a, std::span<const Real> b) {
  Real sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// to += weight * from: the inner loop of everything here, over neighbors in memory.
template <std::floating_point Real>
void add_scaled(Real weight, std::span<const Real> from, std::span<Real> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += weight * from[i];
}

template <std::floating_point Real>
void divide(std::span<Real> row, Real by) {
  for (Real& value : row) value /= by;
}

template <std::floating_point Real>
void check_attention(const Rows<const Real>& q,
                     const Rows<const Real>& k,
                     const Rows<const Real>& v,
                     const Rows<Real>& y) {
  expect_equal("attention: columns of k, as q has", q.columns(), k.columns());
  expect_equal("attention: rows of v, as k has", k.size(), v.size());
  expect_equal("attention: rows of y, as q has", q.size(), y.size());
  expect_equal("attention: columns of y, as v has", v.columns(), y.columns());
}

// A causal or windowed query is a key's neighbor by its index.
template <std::floating_point Real>
void check_same_tokens(const Rows<const Real>& q, const Rows<const Real>& k) {
  expect_equal("causal attention: rows of k, as q has", q.size(), k.size());
}

// C(n, k), or more than kMaxMonomials where it is more. Its products stay far below 2^64.
constexpr std::size_t binomial(std::size_t n, std::size_t k) {
  std::size_t value = 1;
  for (std::size_t i = 1; i <= k && value <= kMaxMonomials; ++i) value = value * (n - k + i) / i;
  return value;
}

}  // namespace detail

// y_i = sum_j softmax(s_i)_j v_j, s_ij = q_i.k_j / sqrt(D), over all keys or those up to i
// (LoLCATs eq. 1; 003's first program, which also adds 1e-12 to a sum that is at least 1).
// q [Tq, D], k [T, D], v [T, E], T >= 1 -> y [Tq, E]; causal wants Tq = T. O(Tq T (D + E)).
template <std::floating_point Real>
void softmax_attention(Mask mask, In<Real> q, In<Real> k, In<Real> v, Rows<Real> y) {
  detail::check_attention(q, k, v, y);
  if (mask == Mask::kCausal) detail::check_same_tokens(q, k);
  const Real scale = 1 / std::sqrt(static_cast<Real>(q.columns()));
  std::vector<Real> scores(k.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    const std::size_t num_keys = mask == Mask::kCausal ? i + 1 : k.size();
    Real maximum = -std::numeric_limits<Real>::infinity();
    for (std::size_t j = 0; j < num_keys; ++j) {
      scores[j] = detail::dot<Real>(q[i], k[j]) * scale;
      maximum = std::max(maximum, scores[j]);
    }
    Real sum = 0;
    std::ranges::fill(y[i], Real{0});
    for (std::size_t j = 0; j < num_keys; ++j) {
      const Real weight = std::exp(scores[j] - maximum);
      sum += weight;
      detail::add_scaled<Real>(weight, v[j], y[i]);
    }
    detail::divide(y[i], sum);
  }
}

// phi(x) = ELU(x W + b) + 1: z + 1 above 0, e^z below (003's second program; arXiv 2006.16236).
// weight [D, F], bias of F numbers, x [T, D] -> phi [T, F]. The kernels clamp it at 1e-12.
template <std::floating_point Real>
void elu_plus_one_features(In<Real> weight, InSpan<Real> bias, In<Real> x, Rows<Real> phi) {
  detail::expect_equal("ELU features: rows of W, as x has columns", x.columns(), weight.size());
  detail::expect_equal(
      "ELU features: size of the bias, as W has columns", weight.columns(), bias.size());
  detail::expect_equal("ELU features: columns of phi, as W has", weight.columns(), phi.columns());
  detail::expect_equal("ELU features: rows of phi, as x has", x.size(), phi.size());
  for (std::size_t t = 0; t < x.size(); ++t) {
    std::ranges::copy(bias, phi[t].begin());
    for (std::size_t d = 0; d < x.columns(); ++d) {
      detail::add_scaled<Real>(x[t][d], weight[d], phi[t]);
    }
    for (Real& z : phi[t]) z = z > 0 ? z + 1 : std::exp(z);
  }
}

// phi(x) = exp(Omega^T x' - |x'|^2 / 2) / sqrt(F), x' = D^-1/4 x: with columns of Omega drawn from
// N(0, 1), phi(q).phi(k) is exp(q.k / sqrt(D)) on average, with the relative variance
// (exp(|q' + k'|^2) - 1) / F (FAVOR+ lemma 1). A query's scale cancels in the attention, so the
// kernels take its largest exponent away, and with it |x'|^2 / 2; Side::kQuery does so too.
// omega [D, F], the same for both sides, x [T, D] -> phi [T, F].
template <std::floating_point Real>
void positive_random_features(Side side, In<Real> omega, In<Real> x, Rows<Real> phi) {
  detail::expect_equal(
      "random features: rows of Omega, as x has columns", x.columns(), omega.size());
  detail::expect_equal(
      "random features: columns of phi, as Omega has", omega.columns(), phi.columns());
  detail::expect_equal("random features: rows of phi, as x has", x.size(), phi.size());
  const Real scale = 1 / std::sqrt(std::sqrt(static_cast<Real>(x.columns())));
  const Real normaliser = 1 / std::sqrt(static_cast<Real>(omega.columns()));
  for (std::size_t t = 0; t < x.size(); ++t) {
    std::ranges::fill(phi[t], Real{0});
    for (std::size_t d = 0; d < x.columns(); ++d) {
      detail::add_scaled<Real>(x[t][d] * scale, omega[d], phi[t]);
    }
    const Real shift = side == Side::kQuery ? *std::ranges::max_element(phi[t])
                                            : detail::dot<Real>(x[t], x[t]) * scale * scale / 2;
    for (Real& z : phi[t]) z = std::exp(z - shift) * normaliser;
  }
}

// S = sum phi_k v^T and z = sum phi_k of the keys that were added: what linear attention keeps of
// them, F (E + 1) numbers at any length. A step of the stream is `add`, then `read` or `attend`.
template <std::floating_point Real>
class LinearState {
 public:
  // Holds no key. F, E >= 1.
  LinearState(std::size_t num_features, std::size_t columns)
      : S_(num_features * columns), z_(num_features), columns_(columns) {
    if (num_features == 0 || columns == 0) {
      throw std::invalid_argument("linear state: expected features and columns, found none");
    }
  }

  // phi_k [F] and v [E] join the sums (LoLCATs eq. 3). O(F E), a row of S after the other.
  void add(std::span<const Real> phi_k, std::span<const Real> v) {
    detail::expect_equal("linear state: features of the key", z_.size(), phi_k.size());
    detail::expect_equal("linear state: columns of v", columns_, v.size());
    const Rows<Real> S(S_, columns_);
    for (std::size_t f = 0; f < z_.size(); ++f) {
      detail::add_scaled(phi_k[f], v, S[f]);
      z_[f] += phi_k[f];
    }
  }

  // y [E] += phi_q S; returns phi_q.z. O(F E), row by row as above.
  [[nodiscard]] Real read(std::span<const Real> phi_q, std::span<Real> y) const {
    check_read(phi_q, y);
    const Rows<const Real> S(S_, columns_);
    for (std::size_t f = 0; f < z_.size(); ++f) detail::add_scaled(phi_q[f], S[f], y);
    return detail::dot<Real>(phi_q, z_);
  }

  // y [E] = phi_q S / (phi_q.z + 1e-12) (LoLCATs eq. 2).
  void attend(std::span<const Real> phi_q, std::span<Real> y) const {
    check_read(phi_q, y);
    std::ranges::fill(y, Real{0});
    const Real sum = read(phi_q, y);
    detail::divide(y, sum + static_cast<Real>(kLinearEpsilon));
  }

 private:
  void check_read(std::span<const Real> phi_q, std::span<Real> y) const {
    detail::expect_equal("linear state: features of the query", z_.size(), phi_q.size());
    detail::expect_equal("linear state: columns of y", columns_, y.size());
  }

  std::vector<Real> S_;  // [F, E]
  std::vector<Real> z_;  // [F]
  std::size_t columns_;
};

// y_i = phi_q_i S_i / (phi_q_i.z_i + 1e-12), where S_i and z_i sum over all keys (003's second
// program) or over those up to i, kept as a stream (its third). phi_q [Tq, F], phi_k [T, F],
// v [T, E] -> y [Tq, E]; causal wants Tq = T. O((Tq + T) F E).
template <std::floating_point Real>
void linear_attention(Mask mask, In<Real> phi_q, In<Real> phi_k, In<Real> v, Rows<Real> y) {
  detail::check_attention(phi_q, phi_k, v, y);
  const bool causal = mask == Mask::kCausal;
  if (causal) detail::check_same_tokens(phi_q, phi_k);
  LinearState<Real> state(phi_k.columns(), v.columns());
  for (std::size_t t = 0; t < phi_k.size(); ++t) {
    state.add(phi_k[t], v[t]);
    if (causal) state.attend(phi_q[t], y[t]);
  }
  for (std::size_t t = 0; !causal && t < phi_q.size(); ++t) state.attend(phi_q[t], y[t]);
}

struct HybridOptions {
  Window window = Window::kTerraced;
  std::size_t window_size = 64;  // W, in tokens; terraced, up to 2 W are in the window
  std::size_t num_sinks = 0;     // the first tokens, which stay in every later query's window
  double window_factor = 0;      // the logit of g
};

// The first key of query i's window, but for sinks: the keys from there to i are under softmax.
// Terraced: the query's own chunk of W tokens and the one before it.
[[nodiscard]] constexpr std::size_t window_begin(Window window, std::size_t W, std::size_t i) {
  if (window == Window::kSliding) return i + 1 > W ? i + 1 - W : 0;
  return i / W > 0 ? (i / W - 1) * W : 0;
}

// y_i = (sum_window p v + phi_q S) / (sum_window p + phi_q z), p_ij = g exp(s_ij - m_i), with
// s_ij = q_i.k_j / sqrt(D), m_i its maximum over the window, which has the sinks in it, and S and
// z of all other keys before it (LoLCATs eq. 6; kernels/reference is the same with T x T tensors).
// The shift by m is part of the model: the linear side is not shifted with it.
// q, k [T, D], phi_q, phi_k [T, F], v [T, E] -> y [T, E]. O(T (W (D + E) + F E)).
template <std::floating_point Real>
void hybrid_attention(const HybridOptions& options,
                      In<Real> q,
                      In<Real> k,
                      In<Real> phi_q,
                      In<Real> phi_k,
                      In<Real> v,
                      Rows<Real> y) {
  detail::check_attention(q, k, v, y);
  detail::check_same_tokens(q, k);
  detail::expect_equal("hybrid: rows of phi_q, as q has", q.size(), phi_q.size());
  detail::expect_equal("hybrid: rows of phi_k, as k has", k.size(), phi_k.size());
  detail::expect_equal("hybrid: columns of phi_k, as phi_q has", phi_q.columns(), phi_k.columns());
  if (options.window_size == 0) {
    throw std::invalid_argument("hybrid: expected a window of at least one token, found 0");
  }
  const Real scale = 1 / std::sqrt(static_cast<Real>(q.columns()));
  const Real g = 1 / (1 + std::exp(static_cast<Real>(-options.window_factor)));
  LinearState<Real> before(phi_k.columns(), v.columns());
  std::vector<Real> scores(q.size());
  std::size_t folded = 0;  // keys that left the window, but for sinks
  for (std::size_t i = 0; i < q.size(); ++i) {
    const std::size_t begin = window_begin(options.window, options.window_size, i);
    for (; folded < begin; ++folded) {
      if (folded >= options.num_sinks) before.add(phi_k[folded], v[folded]);
    }
    const auto for_each_key = [&](auto visit) {
      for (std::size_t j = 0; j < std::min(options.num_sinks, begin); ++j) visit(j);
      for (std::size_t j = begin; j <= i; ++j) visit(j);
    };
    Real maximum = -std::numeric_limits<Real>::infinity();
    for_each_key([&](std::size_t j) {
      scores[j] = detail::dot<Real>(q[i], k[j]) * scale;
      maximum = std::max(maximum, scores[j]);
    });
    std::ranges::fill(y[i], Real{0});
    Real sum = before.read(phi_q[i], y[i]);
    for_each_key([&](std::size_t j) {
      const Real weight = g * std::exp(scores[j] - maximum);
      sum += weight;
      detail::add_scaled<Real>(weight, v[j], y[i]);
    });
    detail::divide(y[i], sum);
  }
}

// x'^a / sqrt(a!) for each monomial of degree <= order in the D variables of x' = D^-1/4 x, by
// degree: the product of a query's with a key's is sum_{n <= order} s^n / n!, s = q.k / sqrt(D).
// The D^n products of arXiv 2507.23632 eq. 3 that differ in the order of their factors are one
// monomial here, counted by its weight: C(D + n - 1, n) of degree n, C(D + order, order) in all.
class Monomials {
 public:
  // Throws beyond kMaxSeriesOrder and kMaxMonomials.
  Monomials(std::size_t order, std::size_t num_variables) : num_variables_(num_variables) {
    if (num_variables == 0 || order > kMaxSeriesOrder ||
        detail::binomial(num_variables + order, order) > kMaxMonomials) {
      throw std::invalid_argument(
          "series: expected at most order " + std::to_string(kMaxSeriesOrder) + " and " +
          std::to_string(kMaxMonomials) + " monomials, found order " + std::to_string(order) +
          " of " + std::to_string(num_variables) + " variables");
    }
    steps_.reserve(detail::binomial(num_variables + order, order));
    steps_.push_back({});
    // Each monomial of a degree times each variable from its last one on is the next degree.
    std::size_t begin = 0;
    for (std::size_t degree = 1; degree <= order; ++degree) {
      const std::size_t end = steps_.size();
      for (std::size_t parent = begin; parent < end; ++parent) {
        const Step last = steps_[parent];
        for (std::size_t i = last.variable; i < num_variables; ++i) {
          const std::size_t power = i == last.variable ? last.power + 1 : 1;
          steps_.push_back({.parent = parent, .variable = i, .power = power});
        }
      }
      begin = end;
    }
  }

  [[nodiscard]] std::size_t size() const { return steps_.size(); }
  [[nodiscard]] std::size_t num_variables() const { return num_variables_; }

  // x [D] -> phi [size()]: three products a monomial.
  template <std::floating_point Real>
  void features(InSpan<Real> x, std::span<Real> phi) const {
    detail::expect_equal("series: columns of q and k", num_variables_, x.size());
    detail::expect_equal("series: monomials", steps_.size(), phi.size());
    const Real scale = 1 / std::sqrt(std::sqrt(static_cast<Real>(num_variables_)));
    // The power p of a variable grows from p - 1, so that 1 / sqrt(p!) grows with it.
    std::array<Real, kMaxSeriesOrder + 1> weights{};
    for (std::size_t p = 1; p < weights.size(); ++p) {
      weights[p] = scale / std::sqrt(static_cast<Real>(p));
    }
    phi[0] = 1;
    for (std::size_t m = 1; m < steps_.size(); ++m) {
      const Step& step = steps_[m];
      phi[m] = phi[step.parent] * x[step.variable] * weights[step.power];
    }
  }

 private:
  // The monomial is its parent times one more of a variable, which it then has to this power. The
  // first, 1, has none of variable 0.
  struct Step {
    std::size_t parent = 0, variable = 0, power = 0;
  };
  std::vector<Step> steps_;
  std::size_t num_variables_;
};

// Softmax attention with its exponential cut after the order, as a sum of order + 1 recurrences
// (arXiv 2507.23632 section 3.1): with phi^n the monomials of degree n,
//
//   y_t = (sum_n phi^n(q_t) H^n_t)[v] / (..)[1],  H^n_t = H^n_{t-1} + phi^n(k_t) [v_t, 1]
//
// H^n lie in one LinearState. Even orders have denominators above 0. Odd ones may reach 0 and
// below, and y is then what the arithmetic gives.
template <std::floating_point Real>
class SeriesState {
 public:
  // Holds no key. Throws as Monomials does.
  SeriesState(std::size_t order, std::size_t head_dim, std::size_t columns)
      : monomials_(order, head_dim),
        sums_(monomials_.size(), columns),
        phi_(monomials_.size()),
        columns_(columns) {}

  // k [D] and v [E] join the sums.
  void add(std::span<const Real> k, std::span<const Real> v) {
    monomials_.features<Real>(k, phi_);
    sums_.add(phi_, v);
  }

  // q [D] -> y [E]. Not const: the features of q lie in the state.
  void attend(std::span<const Real> q, std::span<Real> y) {
    detail::expect_equal("series: columns of y", columns_, y.size());
    monomials_.features<Real>(q, phi_);
    std::ranges::fill(y, Real{0});
    const Real sum = sums_.read(phi_, y);
    detail::divide(y, sum);
  }

 private:
  Monomials monomials_;
  LinearState<Real> sums_;
  std::vector<Real> phi_;
  std::size_t columns_;
};

// The series over all keys (its appendix C) or as a stream. q [Tq, D], k [T, D], v [T, E] ->
// y [Tq, E]; causal wants Tq = T. O((Tq + T) C(D + order, order) E).
template <std::floating_point Real>
void series_attention(
    Mask mask, std::size_t order, In<Real> q, In<Real> k, In<Real> v, Rows<Real> y) {
  detail::check_attention(q, k, v, y);
  const bool causal = mask == Mask::kCausal;
  if (causal) detail::check_same_tokens(q, k);
  SeriesState<Real> state(order, q.columns(), v.columns());
  for (std::size_t t = 0; t < k.size(); ++t) {
    state.add(k[t], v[t]);
    if (causal) state.attend(q[t], y[t]);
  }
  for (std::size_t t = 0; !causal && t < q.size(); ++t) state.attend(q[t], y[t]);
}

}  // namespace hedgerow::plain
