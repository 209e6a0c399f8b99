#include "kernels/feature_map.hpp"
