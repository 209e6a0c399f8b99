#include "worker/model/decoder.hpp"
