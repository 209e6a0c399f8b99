#include "coordinator/plan/plan_mesh.hpp"

#include <algorithm>
#include <limits>

#include "storage/base/error.hpp"
#include "storage/shape/pipeline_order.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::LayerRange;
using storage::Mesh;

// The share of a GPU's memory that a mesh may need. Nothing has measured it: "auto" takes a
// mesh that needs more only where no other fits.
constexpr double kComfortable = 0.9;

// Ranges of a stage that "auto" tries.
constexpr int kChunks[] = {1, 2, 3, 4, 6, 8};

double divided(double count, double by) { return by > 0 ? count / by : 0.0; }

// No order need be made for more micro-batches: the pipeline is full, each further one takes what
// the busiest stage does with it, and no more are in flight.
int num_ordered(const Mesh& mesh, int num_micro_batches) {
  constexpr int kBeyondFull = 16;
  return std::min(num_micro_batches, 2 * mesh.pipeline + kBeyondFull);
}

struct PipelineSeconds {
  double makespan = 0.0, idle = 0.0;
};

// `order`: of the first num_ordered() micro-batches.
PipelineSeconds through_pipeline(const Mesh& mesh,
                                 int num_micro_batches,
                                 const storage::PipelineOrder& order,
                                 const std::vector<storage::RangeCost>& costs,
                                 double message) {
  if (num_micro_batches == 0) return {};
  const auto times = storage::pipeline_times(order, mesh, costs, message);
  std::vector<double> busy(static_cast<std::size_t>(mesh.pipeline));
  double all = 0.0;
  for (std::size_t range = 0; range < costs.size(); ++range) {
    const double own = costs[range].forward + costs[range].backward;
    busy[range % busy.size()] += own;
    all += own;
  }
  const int further = num_micro_batches - num_ordered(mesh, num_micro_batches);
  PipelineSeconds seconds;
  seconds.makespan = times.makespan + further * *std::ranges::max_element(busy);
  seconds.idle =
      std::max(0.0, 1.0 - divided(num_micro_batches * all, seconds.makespan * mesh.pipeline));
  return seconds;
}

std::string layers_text(const std::vector<LayerRange>& ranges) {
  std::string text;
  for (const LayerRange& range : ranges) {
    text += text.empty() ? (ranges.size() == 1 && range.size() == 1 ? "layer " : "layers ") : ", ";
    text += std::to_string(range.begin);
    if (range.size() > 1) text += " to " + std::to_string(range.end - 1);
  }
  return text;
}

bool is_known(const WorkerKind& kind) {
  return (kind.on_gpu ? kind.gpu_memory_bytes : kind.host_memory_bytes) > 0;
}

}  // namespace

// What a mesh's stages hold, and in which order they train, where that was needed for it.
struct MeshPlanner::Stages {
  Mesh mesh;
  std::vector<LayerRange> ranges;
  std::vector<RankShare> shares;
  storage::PipelineOrder order;
};

int ranks_per_node(const WorkerKind& kind, int ranks) {
  const int nodes = std::max(1, kind.nodes);
  return kind.on_gpu ? kind.workers_per_node : (ranks + nodes - 1) / nodes;
}

std::uint64_t rank_memory(const WorkerKind& kind, int ranks) {
  if (kind.on_gpu) return kind.gpu_memory_bytes;
  return kind.host_memory_bytes /
         static_cast<std::uint64_t>(std::max(1, ranks_per_node(kind, ranks)));
}

MeshPlanner::MeshPlanner(const storage::Recipe& recipe,
                         const storage::ModelConfig& model,
                         const PlanTokens& tokens,
                         const PlanLimits& limits)
    : recipe_(recipe),
      model_(model),
      tokens_(tokens),
      limits_(limits),
      costs_(recipe, model, tokens, limits) {}

int MeshPlanner::micro_batches(const Mesh& mesh) const {
  const int all = recipe_.finetune.sequences_per_step / recipe_.finetune.sequences_per_micro_batch;
  return (all + mesh.data - 1) / mesh.data;
}

// With fewer stages first, and with fewer ranges of each.
std::vector<Mesh> MeshPlanner::candidates(int ranks, int most_chunks) const {
  const int micro_batches = this->micro_batches({});
  std::vector<Mesh> meshes;
  for (int stages = 1; stages <= std::min(ranks, model_.num_hidden_layers); ++stages) {
    if (ranks % stages != 0 || ranks / stages > micro_batches) continue;
    for (const int chunks : kChunks) {
      const Mesh mesh{ranks / stages, stages, chunks};
      if (chunks > most_chunks || (stages == 1 && chunks > 1)) break;
      if (mesh.num_ranges() <= model_.num_hidden_layers) meshes.push_back(mesh);
    }
  }
  return meshes;
}

MeshPlanner::Stages MeshPlanner::stages_of(const Mesh& mesh) const {
  Stages stages{mesh, storage::split_layers(model_, mesh), {}, {}};
  const int count = micro_batches(mesh);
  if (mesh.chunks > 1) stages.order = storage::pipeline_order(mesh, num_ordered(mesh, count), true);
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    RankShare share{.has_embedding = stage == 0,
                    .has_head = stage == mesh.pipeline - 1,
                    .num_ranges = mesh.chunks};
    for (const LayerRange& range : storage::ranges_of_stage(stages.ranges, mesh, stage))
      share.layers += range.size();
    // With one range a stage as pipeline_order() promises.
    share.in_flight = mesh.chunks == 1
                          ? std::min(mesh.pipeline - stage, count)
                          : storage::most_in_flight(stages.order[static_cast<std::size_t>(stage)]);
    stages.shares.push_back(share);
  }
  return stages;
}

std::vector<std::uint64_t> MeshPlanner::stage_memory(const Mesh& mesh,
                                                     const RankDevice& device) const {
  std::vector<std::uint64_t> bytes;
  for (const RankShare& share : stages_of(mesh).shares)
    bytes.push_back(costs_.finetune_memory(share, mesh.ranks(), device));
  return bytes;
}

bool MeshPlanner::fits(const Mesh& mesh,
                       const std::vector<RankShare>& shares,
                       const WorkerKind& kind,
                       double usable) const {
  if (kind.on_gpu && mesh.ranks() > kind.workers()) return false;
  const std::uint64_t host = kind.on_gpu ? kind.host_memory_bytes : 0;
  if (host > 0 && costs_.gpu_process_memory() >
                      host / static_cast<std::uint64_t>(std::max(1, kind.workers_per_node)))
    return false;
  const double has = usable * static_cast<double>(rank_memory(kind, mesh.ranks()));
  return has == 0.0 || std::ranges::all_of(shares, [&](const RankShare& share) {
           return static_cast<double>(
                      costs_.finetune_memory(share, mesh.ranks(), rank_device(kind))) <= has;
         });
}

bool MeshPlanner::fits(const Mesh& mesh, const WorkerKind& kind) const {
  return fits(mesh, stages_of(mesh).shares, kind);
}

bool MeshPlanner::fits(const MeshPlan& plan, const WorkerKind& kind) const {
  return fits(plan.mesh, plan.shares, kind);
}

std::optional<Mesh> MeshPlanner::shortest_fitting(int ranks, const WorkerKind& kind) const {
  for (const Mesh& mesh : candidates(ranks, 1)) {
    if (fits(mesh, kind)) return mesh;
  }
  return std::nullopt;
}

bool MeshPlanner::fits_somewhere() const {
  const auto own = storage::parse_mesh(recipe_.finetune.mesh);
  return std::ranges::any_of(limits_.workers, [&](const WorkerKind& kind) {
    return own ? fits(*own, kind) : shortest_fitting(recipe_.finetune.ranks, kind).has_value();
  });
}

std::string MeshPlanner::stage_text(const Mesh& mesh, int stage) const {
  const auto ranges = storage::ranges_of_stage(storage::split_layers(model_, mesh), mesh, stage);
  const bool is_last = stage == mesh.pipeline - 1;
  std::string text = layers_text(ranges);
  if (stage == 0) text = "the embedding, " + text;
  if (is_last) text += " and the head";
  return "stage " + std::to_string(stage + 1) + " of " + std::to_string(mesh.pipeline) + " (" +
         text + ")";
}

// The mesh whose largest stage needs least, where none fits.
Mesh MeshPlanner::smallest() const {
  const bool on_gpu =
      std::ranges::any_of(limits_.workers, [](const WorkerKind& kind) { return kind.on_gpu; });
  std::optional<Mesh> best;
  std::uint64_t least = 0;
  for (const Mesh& mesh : candidates(recipe_.finetune.ranks, 1)) {
    const std::uint64_t need = std::ranges::max(stage_memory(mesh, {.on_gpu = on_gpu}));
    if (best && need >= least) continue;
    best = mesh;
    least = need;
  }
  return *best;
}

MeshPlan MeshPlanner::plan() const {
  const int ranks = recipe_.finetune.ranks;
  if (const auto own = storage::parse_mesh(recipe_.finetune.mesh)) {
    if (own->num_ranges() > model_.num_hidden_layers) {
      throw Error(ErrorKind::kUsage,
                  "finetune.mesh = \"" + recipe_.finetune.mesh + "\" has " +
                      std::to_string(own->num_ranges()) +
                      " ranges of layers in a pipeline, but the model has " +
                      std::to_string(model_.num_hidden_layers) +
                      " layers; use fewer stages and more pipelines, or set it to \"auto\"");
    }
    std::size_t kind = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < limits_.workers.size(); ++i) {
      const WorkerKind& tried = limits_.workers[i];
      if (!fits(*own, tried)) continue;
      const double seconds = tried.speed.is_known() ? least_seconds(*own, tried) : 0.0;
      if (seconds >= least) continue;
      kind = i;
      least = seconds;
    }
    return measured(stages_of(*own), kind);
  }
  if (candidates(ranks, 1).empty()) {
    const int stages = storage::shortest_mesh(ranks, micro_batches({})).pipeline;
    int fewer = ranks - 1;
    while (candidates(fewer, 1).empty()) --fewer;
    throw Error(ErrorKind::kUsage,
                "finetune.ranks = " + std::to_string(ranks) + " makes pipelines of at least " +
                    std::to_string(stages) + " stages, since a step has " +
                    std::to_string(micro_batches({})) +
                    " micro-batches and each pipeline needs one, but the model has " +
                    std::to_string(model_.num_hidden_layers) + " layers; finetune.ranks = " +
                    std::to_string(fewer) + " is the largest below that makes a mesh");
  }
  if (std::ranges::none_of(limits_.workers, is_known))
    return measured(stages_of(storage::shortest_mesh(ranks, micro_batches({}))), 0);
  return choose();
}

MeshPlan MeshPlanner::choose() const {
  struct Choice {
    Mesh mesh;
    std::size_t kind;
    double least;
  };
  std::vector<Choice> choices;
  for (std::size_t kind = 0; kind < limits_.workers.size(); ++kind) {
    const WorkerKind& tried = limits_.workers[kind];
    if (!tried.speed.is_known()) {
      if (const auto mesh = shortest_fitting(recipe_.finetune.ranks, tried))
        return measured(stages_of(*mesh), kind);
      continue;
    }
    for (const Mesh& mesh : candidates(recipe_.finetune.ranks, kChunks[std::size(kChunks) - 1]))
      choices.push_back({mesh, kind, least_seconds(mesh, tried)});
  }
  // A mesh that cannot be faster than the best so far need not be looked at.
  std::ranges::stable_sort(choices, {}, &Choice::least);
  const auto fastest = [&](double usable_of_gpu) {
    std::optional<MeshPlan> best;
    for (const Choice& choice : choices) {
      if (best && choice.least >= best->step_seconds) break;
      const WorkerKind& kind = limits_.workers[choice.kind];
      Stages stages = stages_of(choice.mesh);
      if (!fits(choice.mesh, stages.shares, kind, kind.on_gpu ? usable_of_gpu : 1.0)) continue;
      MeshPlan plan = measured(std::move(stages), choice.kind);
      if (!best || plan.step_seconds < best->step_seconds) best = std::move(plan);
    }
    return best;
  };
  if (const auto best = fastest(kComfortable)) return *best;
  if (const auto best = fastest(1.0)) return *best;
  const auto known = std::ranges::find_if(limits_.workers, is_known);
  return measured(stages_of(smallest()), static_cast<std::size_t>(known - limits_.workers.begin()));
}

// No pipeline is faster than its busiest stage, nor than one micro-batch through all of them.
double MeshPlanner::least_seconds(const Mesh& mesh, const WorkerKind& kind) const {
  const auto ranges = storage::split_layers(model_, mesh);
  const double tokens = 1.0 * recipe_.finetune.sequences_per_micro_batch *
                        static_cast<double>(tokens_.finetune.seq_len);
  std::vector<double> busy(static_cast<std::size_t>(mesh.pipeline));
  double all = 0.0;
  for (std::size_t range = 0; range < ranges.size(); ++range) {
    const bool has_head = range + 1 == ranges.size();
    const int layers = ranges[range].size();
    const Work work =
        costs_.range_forward(layers, has_head) + costs_.range_backward(layers, has_head, false);
    const double seconds = (tokens * work).seconds(kind.speed);
    busy[range % busy.size()] += seconds;
    all += seconds;
  }
  return std::max(all, micro_batches(mesh) * *std::ranges::max_element(busy)) /
         kind.units(recipe_.finetune.threads, ranks_per_node(kind, mesh.ranks()));
}

MeshPlan MeshPlanner::measured(Stages stages, std::size_t kind) const {
  const Mesh mesh = stages.mesh;
  if (stages.order.empty())
    stages.order = storage::pipeline_order(mesh, num_ordered(mesh, micro_batches(mesh)), true);
  MeshPlan plan{.mesh = mesh, .shares = stages.shares, .kind = kind};
  plan.micro_batches = micro_batches(mesh);
  const RankDevice device = limits_.workers.empty() ? RankDevice{} : rank_device(limits_.workers[kind]);
  int trained = 0;  // layers whose gradients go between pipelines
  for (const RankShare& share : stages.shares) {
    plan.most_layers = std::max(plan.most_layers, share.layers);
    plan.recomputes |= !costs_.keeps_activations(share, mesh.ranks(), device);
    plan.read_bytes =
        std::max(plan.read_bytes, static_cast<std::uint64_t>(costs_.rank_bytes(share)));
    trained += share.layers;
  }
  const int all = recipe_.finetune.sequences_per_step / recipe_.finetune.sequences_per_micro_batch;
  const double message = costs_.forward_message_bytes() + costs_.backward_message_bytes();
  if (mesh.pipeline > 1)
    plan.bytes_per_step = static_cast<std::uint64_t>(1.0 * all * (mesh.num_ranges() - 1) * message);
  plan.gradient_bytes_per_step =
      static_cast<std::uint64_t>(2.0 * (mesh.data - 1) * costs_.gradient_bytes(trained));
  time(stages, plan);
  return plan;
}

void MeshPlanner::time(const Stages& stages, MeshPlan& plan) const {
  const Mesh& mesh = plan.mesh;
  const WorkerKind* kind = limits_.workers.empty() ? nullptr : &limits_.workers[plan.kind];
  const bool is_timed = kind != nullptr && kind->speed.is_known();
  const int per_node = kind == nullptr ? mesh.ranks() : ranks_per_node(*kind, mesh.ranks());
  const double tokens = 1.0 * recipe_.finetune.sequences_per_micro_batch *
                        static_cast<double>(tokens_.finetune.seq_len);
  // In seconds, or where no speed is known in operations, which tell what is idle as well.
  const auto cost = [&](const Work& work) {
    if (!is_timed) return tokens * work.flops();
    return (tokens * work).seconds(kind->speed) / kind->units(recipe_.finetune.threads, per_node);
  };
  std::vector<storage::RangeCost> training, validation;
  const double share_of_one = 1.0 / recipe_.finetune.sequences_per_micro_batch;
  for (std::size_t range = 0; range < stages.ranges.size(); ++range) {
    const bool has_head = range + 1 == stages.ranges.size();
    const RankShare& share = stages.shares[range % stages.shares.size()];
    const int layers = stages.ranges[range].size();
    const double forward = cost(costs_.range_forward(layers, has_head));
    const bool recomputes = !costs_.keeps_activations(
        share, mesh.ranks(), kind == nullptr ? RankDevice{} : rank_device(*kind));
    training.push_back({forward, cost(costs_.range_backward(layers, has_head, recomputes))});
    validation.push_back({forward * share_of_one, 0.0});
  }
  // Ranks of a pipeline are neighbours, and a node is filled before the next.
  const bool is_one_node = mesh.ranks() <= per_node;
  const bool pipelines_lie_inside = is_one_node || per_node % mesh.pipeline == 0;
  const double inside = limits_.inside_bytes_per_second, between = limits_.between_bytes_per_second;
  const double rate = pipelines_lie_inside ? inside : between;
  const double message = is_timed ? divided(costs_.backward_message_bytes(), rate) : 0.0;
  const auto step = through_pipeline(mesh, micro_batches(mesh), stages.order, training, message);
  plan.idle = step.idle;
  if (!is_timed) return;
  const double gradients = mesh.data > 1 ? divided(2.0 * costs_.gradient_bytes(plan.most_layers),
                                                   is_one_node ? inside : between)
                                         : 0.0;
  plan.step_seconds = step.makespan + gradients;
  if (kind->on_gpu) {
    plan.tokens_per_second = static_cast<double>(tokens_.finetune.seq_len) *
                             recipe_.finetune.sequences_per_step /
                             (plan.step_seconds * mesh.ranks());
    plan.published_tokens_per_second = kPublishedLoraFlops / costs_.model_training(false).flops();
  }
  const auto all = static_cast<int>(tokens_.finetune.num_sequences - tokens_.finetune.num_train);
  const int validated = (all + mesh.data - 1) / mesh.data;
  const auto order = storage::pipeline_order(mesh, num_ordered(mesh, validated), false);
  plan.validation_seconds =
      through_pipeline(mesh, validated, order, validation, message * share_of_one).makespan;
}

std::string mesh_of_ranks(const storage::Recipe& recipe,
                          const storage::ModelConfig& model,
                          const PlanTokens& tokens,
                          const PlanLimits& limits,
                          int ranks) {
  if (const auto own = storage::parse_mesh(recipe.finetune.mesh)) {
    if (own->ranks() == ranks) return storage::mesh_text(*own);
    throw Error(ErrorKind::kUsage,
                "finetune.mesh = \"" + recipe.finetune.mesh + "\" has " +
                    std::to_string(own->ranks()) + " ranks, but " + std::to_string(ranks) +
                    " ask for the stage; start " + std::to_string(own->ranks()) +
                    ", or set finetune.mesh = \"auto\"");
  }
  storage::Recipe changed = recipe;
  changed.finetune.ranks = ranks;
  return storage::mesh_text(MeshPlanner(changed, model, tokens, limits).plan().mesh);
}

}  // namespace hedgerow::coordinator
