// The shape that a run of a plan has, from its first event on.
#pragma once

#include "coordinator/plan/plan.hpp"
#include "coordinator/state/geometry.hpp"

namespace hedgerow::coordinator {

[[nodiscard]] Geometry geometry_of(const Plan& plan, const storage::Recipe& recipe);

}  // namespace hedgerow::coordinator
