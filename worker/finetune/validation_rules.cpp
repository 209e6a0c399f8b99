#include "worker/finetune/validation_rules.hpp"

#include <cmath>
#include <string>

#include "storage/base/error.hpp"

namespace hedgerow::worker {

ValidationRules::ValidationRules(const storage::FinetuneSection& finetune, bool has_validation)
    : finetune_(finetune),
      rates_(finetune),
      has_validation_(has_validation),
      plateau_rate_(finetune.learning_rate) {}

bool ValidationRules::is_due(std::int64_t num_steps) const {
  if (!has_validation_ || num_steps == validated_step_) return false;
  return num_steps >= finetune_.max_steps ||
         (finetune_.validate_every > 0 && num_steps % finetune_.validate_every == 0);
}

bool ValidationRules::update(std::int64_t num_steps, const Validation& validation) {
  if (!std::isfinite(validation.loss)) {
    throw storage::Error(storage::ErrorKind::kCorrupt,
                         "the validation loss after " + std::to_string(num_steps) +
                             " finetune steps is not finite; " +
                             (num_steps == 0 ? "check the student and data.finetune"
                                             : "lower finetune.learning_rate"));
  }
  validated_step_ = num_steps;
  last_loss_ = validation.loss;
  if (finetune_.schedule == "plateau")
    plateau_rate_ = plateau_.update(validation.loss, plateau_rate_, rates_);
  const bool is_best = stopper_.update(validation.loss, num_steps);
  if (is_best) {
    best_cross_entropy_ = validation.cross_entropy;
    best_kl_ = validation.kl;
  }
  return is_best;
}

bool ValidationRules::is_over(std::int64_t num_steps) const {
  return num_steps >= finetune_.max_steps || stops_early();
}

double ValidationRules::learning_rate(std::int64_t num_steps) const {
  return rate_after(num_steps, plateau_rate_, rates_);
}

nlohmann::json ValidationRules::result() const {
  nlohmann::json result = nlohmann::json::object();
  if (validated_step_ < 0) return result;
  result = {{"best_step", stopper_.best_step},
            {"validation_loss", stopper_.best},
            {"validation_cross_entropy", best_cross_entropy_},
            {"validation_perplexity", std::exp(best_cross_entropy_)},
            {"last_validation_loss", last_loss_}};
  if (best_kl_ > 0.0) result["validation_kl"] = best_kl_;
  if (stops_early()) result["stopped_early"] = true;
  return result;
}

nlohmann::json ValidationRules::state() const {
  return {{"plateau", plateau_},
          {"plateau_rate", plateau_rate_},
          {"stopper", stopper_},
          {"best_cross_entropy", best_cross_entropy_},
          {"best_kl", best_kl_},
          {"last_loss", last_loss_},
          {"step", validated_step_}};
}

void ValidationRules::restore(const nlohmann::json& state) {
  state.at("plateau").get_to(plateau_);
  state.at("plateau_rate").get_to(plateau_rate_);
  state.at("stopper").get_to(stopper_);
  state.at("best_cross_entropy").get_to(best_cross_entropy_);
  state.at("best_kl").get_to(best_kl_);
  state.at("last_loss").get_to(last_loss_);
  state.at("step").get_to(validated_step_);
}

}  // namespace hedgerow::worker
