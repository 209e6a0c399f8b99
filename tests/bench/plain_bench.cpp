// plain_bench [tokens] [repeats]: causal linear attention of one head, F = E = 64, in the forms
// that "Efficient Attention Mechanisms" (003) warns of, beside kernels/plain. A rung is a JSON
// line: what one thing costs, as nanoseconds a token (median of the repeats, which alternate) and
// the ratio to the best rung. Exit 1 if a rung computes something else than the others.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "kernels/plain/attention.hpp"

namespace {

using namespace hedgerow::plain;
using Nested = std::vector<std::vector<double>>;  // a row an allocation, as 003 has it

constexpr std::size_t F = 64, E = 64;

struct Problem {
  std::size_t T = 0;
  std::vector<double> phi_q, phi_k, v;  // [T, F], [T, F], [T, E]
  std::vector<float> narrow_q, narrow_k, narrow_v;
  Nested nested_q, nested_k, nested_v;
};

Nested nested(const std::vector<double>& values, std::size_t columns) {
  Nested rows;
  for (std::size_t t = 0; t < values.size() / columns; ++t) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(t * columns);
    rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(columns));
  }
  return rows;
}

Problem make_problem(std::size_t T) {
  Problem p;
  p.T = T;
  for (std::size_t i = 0; i < T * F; ++i) {
    p.phi_q.push_back(1 + std::sin(0.37 * static_cast<double>(i)));
    p.phi_k.push_back(1 + std::cos(0.91 * static_cast<double>(i)));
    p.v.push_back(std::sin(0.13 * static_cast<double>(i)));
  }
  p.narrow_q.assign(p.phi_q.begin(), p.phi_q.end());
  p.narrow_k.assign(p.phi_k.begin(), p.phi_k.end());
  p.narrow_v.assign(p.v.begin(), p.v.end());
  p.nested_q = nested(p.phi_q, F);
  p.nested_k = nested(p.phi_k, F);
  p.nested_v = nested(p.v, E);
  return p;
}

void in_floats(const Problem& p, std::size_t T, std::vector<double>& y) {
  std::vector<float> narrow_y(T * E);
  linear_attention<float>(Mask::kCausal,
                          {std::span(p.narrow_q).first(T * F), F},
                          {std::span(p.narrow_k).first(T * F), F},
                          {std::span(p.narrow_v).first(T * E), E},
                          {narrow_y, E});
  std::ranges::copy(narrow_y, y.begin());
}

void in_doubles(const Problem& p, std::size_t T, std::vector<double>& y) {
  linear_attention<double>(Mask::kCausal,
                           {std::span(p.phi_q).first(T * F), F},
                           {std::span(p.phi_k).first(T * F), F},
                           {std::span(p.v).first(T * E), E},
                           {y, E});
}

// S is a contiguous matrix or one of rows of their own: S[f][e] either way.
void add(const double* phi_k, const double* v, auto& S, double* z) {
  for (std::size_t f = 0; f < F; ++f) {
    z[f] += phi_k[f];
    for (std::size_t e = 0; e < E; ++e) S[f][e] += phi_k[f] * v[e];
  }
}

void read_by_rows(const double* phi_q, const auto& S, const double* z, double* y) {
  double sum = kLinearEpsilon;
  std::fill_n(y, E, 0.0);
  for (std::size_t f = 0; f < F; ++f) {
    sum += phi_q[f] * z[f];
    for (std::size_t e = 0; e < E; ++e) y[e] += phi_q[f] * S[f][e];
  }
  for (std::size_t e = 0; e < E; ++e) y[e] /= sum;
}

// The next feature is a whole row away from the last.
void read_by_columns(const double* phi_q, const auto& S, const double* z, double* y) {
  double sum = kLinearEpsilon;
  for (std::size_t f = 0; f < F; ++f) sum += phi_q[f] * z[f];
  for (std::size_t e = 0; e < E; ++e) {
    double value = 0;
    for (std::size_t f = 0; f < F; ++f) value += phi_q[f] * S[f][e];
    y[e] = value / sum;
  }
}

void by_columns(const Problem& p, std::size_t T, std::vector<double>& y) {
  std::vector<double> sums(F * E), z(F);
  const Rows<double> S(sums, E);
  for (std::size_t t = 0; t < T; ++t) {
    add(&p.phi_k[t * F], &p.v[t * E], S, z.data());
    read_by_columns(&p.phi_q[t * F], S, z.data(), &y[t * E]);
  }
}

void in_nested_rows(const Problem& p, std::size_t T, std::vector<double>& y) {
  Nested S(F, std::vector<double>(E));
  std::vector<double> z(F);
  for (std::size_t t = 0; t < T; ++t) {
    add(p.nested_k[t].data(), p.nested_v[t].data(), S, z.data());
    read_by_rows(p.nested_q[t].data(), S, z.data(), &y[t * E]);
  }
}

// 003's third program.
void nested_by_columns(const Problem& p, std::size_t T, std::vector<double>& y) {
  Nested S(F, std::vector<double>(E));
  std::vector<double> z(F);
  for (std::size_t t = 0; t < T; ++t) {
    add(p.nested_k[t].data(), p.nested_v[t].data(), S, z.data());
    read_by_columns(p.nested_q[t].data(), S, z.data(), &y[t * E]);
  }
}

// Each token's phi_k v^T is a matrix of its own before it joins S.
void allocating(const Problem& p, std::size_t T, std::vector<double>& y) {
  std::vector<double> sums(F * E), z(F);
  const Rows<double> S(sums, E);
  for (std::size_t t = 0; t < T; ++t) {
    std::vector<double> product(F * E);
    const Rows<double> rows(product, E);
    add(&p.phi_k[t * F], &p.v[t * E], rows, z.data());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += product[i];
    read_by_rows(&p.phi_q[t * F], S, z.data(), &y[t * E]);
  }
}

// Each query looks at all keys before it: pairs in place of S and z.
void scanning_pairs(const Problem& p, std::size_t T, std::vector<double>& y) {
  const Rows<const double> q(p.phi_q, F), k(p.phi_k, F), v(p.v, E);
  std::ranges::fill(y, 0.0);
  for (std::size_t t = 0; t < T; ++t) {
    const std::span<double> row = std::span(y).subspan(t * E, E);
    double sum = kLinearEpsilon;
    for (std::size_t j = 0; j <= t; ++j) {
      const double weight = detail::dot(q[t], k[j]);
      sum += weight;
      detail::add_scaled(weight, v[j], row);
    }
    detail::divide(row, sum);
  }
}

// Each query makes S and z anew.
void summing_again(const Problem& p, std::size_t T, std::vector<double>& y) {
  const Rows<const double> q(p.phi_q, F), k(p.phi_k, F), v(p.v, E);
  for (std::size_t t = 0; t < T; ++t) {
    LinearState<double> state(F, E);
    for (std::size_t j = 0; j <= t; ++j) state.add(k[j], v[j]);
    state.attend(q[t], std::span(y).subspan(t * E, E));
  }
}

struct Rung {
  const char* name;
  void (*run)(const Problem&, std::size_t, std::vector<double>&);
  std::size_t tokens;
  double tolerance = 1e-9;
  std::vector<double> seconds = {};
};

// The time of every repeat into the rungs, alternating; false if one computes something else.
bool measure(const Problem& p, int repeats, std::vector<Rung>& rungs) {
  std::vector<double> expected(p.T * E), y(p.T * E);
  in_doubles(p, p.T, expected);
  bool equal = true;
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first only warms up and is compared
    for (Rung& rung : rungs) {
      y.resize(rung.tokens * E);
      const auto begin = std::chrono::steady_clock::now();
      rung.run(p, rung.tokens, y);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      if (repeat >= 0) rung.seconds.push_back(time.count());
      for (std::size_t i = 0; i < y.size() && equal; ++i) {
        equal = std::abs(y[i] - expected[i]) <= rung.tolerance;
        if (!equal) std::fprintf(stderr, "%s differs at value %zu\n", rung.name, i);
      }
    }
  }
  return equal;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t T = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4096;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 7;
  if (T == 0 || repeats < 1) {
    std::fprintf(stderr, "usage: plain_bench [tokens] [repeats], both from 1 on\n");
    return 2;
  }
  const Problem problem = make_problem(T);
  std::vector<Rung> rungs = {
      {"kernels/plain, float", in_floats, T, 1e-4},
      {"kernels/plain, double", in_doubles, T},
      {"layout: a vector a row", in_nested_rows, T},
      {"loop order: S by columns", by_columns, T},
      {"both, as 003's third program", nested_by_columns, T},
      {"allocation: a new phi_k v^T a token", allocating, T},
      {"re-scan: all pairs", scanning_pairs, T},
      // Quadratic with F E at every pair: an eighth of the tokens says enough.
      {"re-scan: S and z again a token", summing_again, std::max<std::size_t>(1, T / 8)},
  };
  if (!measure(problem, repeats, rungs)) return 1;
  const auto nanoseconds = [](Rung& rung) {
    std::ranges::sort(rung.seconds);
    return rung.seconds[rung.seconds.size() / 2] * 1e9 / static_cast<double>(rung.tokens);
  };
  double best = nanoseconds(rungs[0]);
  for (Rung& rung : rungs) best = std::min(best, nanoseconds(rung));
  for (Rung& rung : rungs) {
    std::printf("{\"rung\": \"%s\", \"tokens\": %zu, \"ns_per_token\": %.0f, \"ratio\": %.2f}\n",
                rung.name,
                rung.tokens,
                nanoseconds(rung),
                nanoseconds(rung) / best);
  }
}
