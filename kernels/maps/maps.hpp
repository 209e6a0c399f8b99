// The maps of this folder by their kinds: the one place where a kind becomes a type.
#pragma once

#include "kernels/maps/elu_plus_one.hpp"
#include "kernels/maps/exp.hpp"
#include "kernels/maps/hedgehog_exp.hpp"
#include "kernels/maps/hedgehog_softmax.hpp"
#include "kernels/maps/identity.hpp"
#include "kernels/maps/relu.hpp"

namespace hedgerow::kernels::maps {

template <typename... Maps>
struct List {};
using OfRows = List<HedgehogSoftmax, HedgehogExp>;
using Elementwise = List<Relu, EluPlusOne, Exp, Identity>;

template <typename... Maps>
HEDGEROW_MAP bool is_one_of(FeatureMapKind activation, List<Maps...> /*of*/) {
  return (... || (activation == Maps::kKind));
}

// Maps of whole rows; the others of this folder are elementwise. activation: as a row names it.
HEDGEROW_MAP bool is_of_row(FeatureMapKind activation) { return is_one_of(activation, OfRows{}); }

// Returns visit(map) of the map of that kind; the last one for a kind that is not in the list.
template <typename Visit, typename First, typename... More>
HEDGEROW_MAP auto visit(const Visit& visitor,
                        FeatureMapKind activation,
                        List<First, More...> /*of*/) {
  if constexpr (sizeof...(More) > 0) {
    if (activation != First::kKind) return visit(visitor, activation, List<More...>{});
  }
  return visitor(First{});
}

}  // namespace hedgerow::kernels::maps
