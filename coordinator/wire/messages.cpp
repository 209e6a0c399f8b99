#include "coordinator/wire/messages.hpp"
