#include <array>

#include "worker/laboratory/studies/studies.hpp"

namespace hedgerow::worker::laboratory {

std::span<const Study> all_studies() {
  static constexpr std::array kStudies{
      Study{"recall",
            "000",
            "associative recall: which attention finds a key's value, and how spiky it is",
            published_recall,
            run_recall},
      Study{"encoder",
            "000",
            "a sentence encoder turned into linear attention, both ways and padded",
            published_encoder,
            run_encoder},
      Study{"decoder",
            "000",
            "a small GPT-2 turned into linear attention",
            published_decoder,
            run_decoder},
      Study{"from_scratch",
            "000",
            "language models trained with each attention",
            published_from_scratch,
            run_from_scratch},
      Study{"performer",
            "001",
            "where random features are faster, what they cost in loss, and the leak",
            published_performer,
            run_performer},
      Study{"denominators",
            "004",
            "what may stand in for softmax's denominator",
            published_denominators,
            run_denominators},
      Study{
          "orders", "004", "how the series' order walks to softmax", published_orders, run_orders},
      Study{"efficient",
            "003",
            "what layout, loop order and re-scanning cost",
            published_efficient,
            run_efficient},
  };
  return kStudies;
}

}  // namespace hedgerow::worker::laboratory
