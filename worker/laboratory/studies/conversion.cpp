#include "worker/laboratory/studies/conversion.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <numeric>

namespace hedgerow::worker::laboratory {
namespace {

// Batches of the stages, apart from each other.
constexpr std::uint64_t kTeacherBatches = 1000, kMapBatches = 2000, kFinetuneBatches = 3000;

// Seeds are jobs, and each reports its share of the stages.
class Progress {
 public:
  Progress(const StudyOptions& options, std::size_t num_seeds)
      : options_(options), shares_(num_seeds, 0.0) {}
  void report(std::size_t seed, double share, const std::string& note) {
    const std::lock_guard lock(mutex_);
    shares_[seed] = share;
    if (options_.progress)
      options_.progress(std::accumulate(shares_.begin(), shares_.end(), 0.0) /
                            static_cast<double>(shares_.size()),
                        note);
  }
  void row(const nlohmann::json& value) {
    const std::lock_guard lock(mutex_);
    if (options_.on_row) options_.on_row(value);
  }

 private:
  const StudyOptions& options_;
  std::vector<double> shares_;
  std::mutex mutex_;
};

TrainingOptions of_seed(TrainingOptions training, std::uint64_t stage, std::size_t seed) {
  training.seed += stage + seed;
  return training;
}

Converted convert_one(const ConversionPlan& plan,
                      const Conversion& conversion,
                      const Transformer& teacher,
                      std::size_t seed,
                      const std::function<bool(double)>& keep_on) {
  TransformerOptions options = teacher.options();
  options.attention = conversion.attention;
  const Transformer student(options);
  student.copy_from(teacher);
  Converted done;
  if (conversion.is_distilled)
    done.distil = train(student, plan.maps, of_seed(plan.distil, kMapBatches, seed), keep_on);
  if (plan.compare) {
    const c10::NoGradGuard no_grad;
    done.compared = plan.compare(student, teacher);
  }
  done.finetune =
      train(student, plan.task, of_seed(plan.finetune, kFinetuneBatches, seed), keep_on);
  done.swapped_score = done.finetune.curve.front().score;
  return done;
}

nlohmann::json stage_json(const TrainingOptions& training) {
  return {{"steps", training.steps},
          {"batch", training.batch_size},
          {"learning_rate", training.learning_rate},
          {"weight_decay", training.weight_decay}};
}

nlohmann::json row_of_conversion(const std::string& name,
                                 std::size_t seed,
                                 const Trial& teacher,
                                 const Converted& converted) {
  nlohmann::json row = {{"attention", name},
                        {"seed", seed},
                        {"teacher", teacher.final_score()},
                        {"swapped", converted.swapped_score},
                        {"finetuned", converted.finetune.final_score()},
                        {"seconds", converted.distil.seconds + converted.finetune.seconds}};
  if (!converted.distil.curve.empty())
    row["map_loss"] = {converted.distil.curve.front().score, converted.distil.final_score()};
  if (!converted.compared.is_null()) row.update(converted.compared);
  return row;
}

}  // namespace

std::vector<double> ConversionResult::final_scores(std::size_t conversion) const {
  std::vector<double> scores;
  for (const Converted& done : converted[conversion]) scores.push_back(done.finetune.final_score());
  return scores;
}

std::vector<Conversion> paper_conversions(bool causal) {
  ScoreSpec softmax, t2r, hedgehog;
  t2r.name = "t2r";
  t2r.score = hedgehog.score = Score::kProduct;
  t2r.map = Map::kRelu;
  t2r.trained_map = true;
  hedgehog.name = "hedgehog";
  hedgehog.map = Map::kHedgehog;
  softmax.causal = t2r.causal = hedgehog.causal = causal;
  ScoreSpec t2r_distilled = t2r;
  t2r_distilled.name = "t2r_distilled";
  return {{softmax, false}, {t2r, false}, {t2r_distilled, true}, {hedgehog, true}};
}

ConversionResult convert(const ConversionPlan& plan,
                         const std::vector<Conversion>& conversions,
                         int num_seeds,
                         const StudyOptions& options) {
  const auto seeds = static_cast<std::size_t>(num_seeds);
  ConversionResult result;
  result.teachers.resize(seeds);
  result.converted.assign(conversions.size(), std::vector<Converted>(seeds));
  Progress progress(options, seeds);
  // In steps, of which a seed's stages have different numbers.
  double all = static_cast<double>(plan.teacher.steps);
  for (const Conversion& conversion : conversions)
    all += static_cast<double>(plan.finetune.steps +
                               (conversion.is_distilled ? plan.distil.steps : 0));
  in_threads(seeds, options.num_threads, [&](std::size_t seed) {
    TransformerOptions model = plan.model;
    model.seed += seed;
    const Transformer teacher(model);
    if (plan.load) plan.load(teacher);
    const auto steps = static_cast<double>(plan.teacher.steps);
    result.teachers[seed] =
        train(teacher, plan.task, of_seed(plan.teacher, kTeacherBatches, seed), [&](double share) {
          progress.report(seed, share * steps / all, "teacher");
          return true;
        });
    double done = steps;
    for (std::size_t c = 0; c < conversions.size(); ++c) {
      const std::string& name = conversions[c].attention.name;
      progress.report(seed, done / all, name);
      Converted& converted = result.converted[c][seed];
      converted = convert_one(plan, conversions[c], teacher, seed, [](double) { return true; });
      done += static_cast<double>(converted.distil.steps + converted.finetune.steps);
      progress.row(row_of_conversion(name, seed, result.teachers[seed], converted));
    }
    progress.report(seed, 1.0, "done");
  });
  return result;
}

StudyResult study_of(const ConversionPlan& plan,
                     const std::vector<Conversion>& conversions,
                     const ConversionResult& result,
                     const StudyOptions& options) {
  StudyResult study;
  study.settings = {{"layers", plan.model.num_layers},
                    {"heads", plan.model.num_heads},
                    {"width", plan.model.hidden_size},
                    {"mlp", plan.model.mlp_size},
                    {"teacher", stage_json(plan.teacher)},
                    {"distil", stage_json(plan.distil)},
                    {"finetune", stage_json(plan.finetune)},
                    {"seeds", result.teachers.size()},
                    {"threads", options.num_threads}};
  study.curves = nlohmann::json::object();
  for (std::size_t c = 0; c < conversions.size(); ++c) {
    const std::string& name = conversions[c].attention.name;
    for (std::size_t seed = 0; seed < result.teachers.size(); ++seed) {
      const Converted& converted = result.converted[c][seed];
      study.rows.push_back(row_of_conversion(name, seed, result.teachers[seed], converted));
      study.curves[name].push_back(curve_of(seed, converted.finetune));
    }
  }
  return study;
}

}  // namespace hedgerow::worker::laboratory
