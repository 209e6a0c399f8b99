// What the validations of a finetune decide: the learning rate on a plateau, the early stop, and
// which step's adapter is published. A function of the steps and the validation losses, which all
// ranks know alike; its state stands in the checkpoint. Called by the task (finetune.cpp).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "storage/recipe/recipe.hpp"
#include "worker/finetune/trainer.hpp"
#include "worker/optim/schedule.hpp"

namespace hedgerow::worker {

class ValidationRules {
 public:
  // has_validation: whether there are sequences to validate on.
  ValidationRules(const storage::FinetuneSection& finetune, bool has_validation);

  // Whether the parameters after `num_steps` steps are to be validated and have not been.
  [[nodiscard]] bool is_due(std::int64_t num_steps) const;
  // True if it is the best so far. Throws kCorrupt when the loss is not finite.
  bool update(std::int64_t num_steps, const Validation& validation);
  // Whether no step follows `num_steps` others.
  [[nodiscard]] bool is_over(std::int64_t num_steps) const;
  // The rate of the step that follows `num_steps` others.
  [[nodiscard]] double learning_rate(std::int64_t num_steps) const;

  // Fields of the task's result: best_step with its validation_loss, _cross_entropy, _perplexity
  // and, with a teacher, _kl; last_validation_loss; where it is true, stopped_early. Nothing
  // without a validation.
  [[nodiscard]] nlohmann::json result() const;
  [[nodiscard]] nlohmann::json state() const;
  // Throws nlohmann::json::exception when something is missing.
  void restore(const nlohmann::json& state);

 private:
  [[nodiscard]] bool stops_early() const {
    return stopper_.should_stop(finetune_.early_stop_patience);
  }

  storage::FinetuneSection finetune_;
  RateSettings rates_;
  bool has_validation_;
  double plateau_rate_;
  Plateau plateau_;
  Stopper stopper_;
  double best_cross_entropy_ = 0.0, best_kl_ = 0.0;
  double last_loss_ = 0.0;
  std::int64_t validated_step_ = -1;  // the newest; -1: none
};

}  // namespace hedgerow::worker
