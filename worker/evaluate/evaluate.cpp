#include "worker/evaluate/evaluate.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "kernels/window_attention.hpp"
#include "storage/base/error.hpp"
#include "storage/shape/budgets.hpp"
#include "worker/model/attention_path.hpp"
#include "worker/model/block_runner.hpp"
#include "worker/model/linear_branch.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

// Four lie side by side: the teacher's logits, its probabilities, a column's logits, their
// difference.
using storage::kLogitRows;
static_assert(kNumColumns == storage::kMostEvaluateColumns, "as the plan counts them");

constexpr std::size_t at_column(Column column) { return static_cast<std::size_t>(column); }

EvaluationShape shape_for(const storage::ModelDirectory& model, const EvaluateOptions& options) {
  const bool has_student = options.student != nullptr;
  return shape_of({.has_student = has_student,
                   .has_adapter = options.adapter != nullptr,
                   .recalls = has_student && options.student->options.recall_cache > 0},
                  has_student ? control_of(*options.student) : options.control,
                  model.config());
}

EvaluationShape shape_of_other(const Student& student, const storage::ModelDirectory& model) {
  return shape_of({.has_student = true}, control_of(student), model.config());
}

// A student whose figures are found, or the teacher alone.
struct Subject {
  const Student* student = nullptr;
  int softmax_layer = -1, softmax_head = -1;  // as OtherStudent has them
  EvaluationShape shape;
  std::array<std::size_t, kNumColumns> streams = {};  // by column, of those in `shape`
  EvaluationPart part = {};
  std::optional<kernels::HybridParameters> maps = {};  // of the layer that is computed
};

// Hidden states that a group's sequences have in a column. Columns of several subjects that are
// computed alike are one stream: the teacher is that of all, and of windows there are as many as
// sizes.
struct Stream {
  Column column = Column::kTeacher;
  std::size_t subject = 0;              // the first that needs it
  kernels::HybridOptions window = {};   // of an untrained one
  std::vector<at::Tensor> hidden = {};  // by sequence of the group
  // Before this layer its hidden states are those of stream `base`, and are not computed again.
  int first_layer = 0;
  std::size_t base = 0;
};

// A layer as the teacher and the control compute it, and as the student does.
struct LayerPair {
  BlockRunner teacher;
  std::optional<BlockRunner> adapted;  // with an adapter
};

// A sequence of the texts that one pass carries.
struct Place {
  std::size_t text = 0;    // 0: the first, else one of EvaluateOptions::texts
  std::int64_t index = 0;  // into its tokens
};

struct Text {
  const storage::TokenSequences& tokens;
  std::string of;  // for messages
  RopeTable rope;
};

// Rows of one column's logits [rows, V] fp32 with their log-sum-exp [rows].
struct Scores {
  at::Tensor logits, normalizer;
};

class Evaluator {
 public:
  Evaluator(const storage::ModelDirectory& model,
            const storage::TokenSequences& tokens,
            const EvaluateOptions& options)
      : model_(model),
        options_(options),
        outer_(load_outer(model, options.compute_dtype, options.device, hooks())),
        students_outer_(outer_) {
    if (options.adapter != nullptr)
      put_in_place(parts_of(students_outer_), options.adapter->trained);
    const auto add = [&](const storage::TokenSequences& of, const std::string& name) {
      texts_.push_back({of, name, make_rope_table(model.config(), of.seq_len, options.device)});
    };
    add(tokens, "the tokens file");
    for (const EvaluationText& text : options.texts) add(*text.tokens, "the text " + text.name);
    add_subject({.student = options.student, .shape = shape_for(model, options)});
    for (const OtherStudent& other : options.others)
      add_subject({.student = other.student,
                   .softmax_layer = other.softmax_layer,
                   .softmax_head = other.softmax_head,
                   .shape = shape_of_other(*other.student, model)});
  }

  [[nodiscard]] int num_streams() const { return static_cast<int>(streams_.size()); }
  [[nodiscard]] EvaluationPart part() const {
    EvaluationPart whole = subjects_.front().part;
    for (std::size_t i = 1; i < subjects_.size(); ++i) whole.others.push_back(subjects_[i].part);
    return whole;
  }

  // False if told to stop.
  bool add_group(const std::vector<Place>& group,
                 std::int64_t layers_before,
                 std::int64_t layers_in_all) {
    const c10::NoGradGuard no_grad;
    const std::size_t before = subjects_.front().part.sequences.size();
    for (Stream& stream : streams_) stream.hidden.clear();
    for (const Place& place : group) {
      for (Subject& subject : subjects_) subject.part.sequences.push_back({.text = place.text});
      const at::Tensor first = start(place);
      for (Stream& stream : streams_) stream.hidden.push_back(first);
    }
    const int num_layers = model_.config().num_hidden_layers;
    for (int layer = 0; layer < num_layers; ++layer) {
      const LayerPair pair = load(layer);
      for (std::size_t i = 0; i < subjects_.size(); ++i) {
        const auto same = std::ranges::find(subjects_, subjects_[i].student, &Subject::student);
        subjects_[i].maps = same - subjects_.begin() < static_cast<std::ptrdiff_t>(i)
                                ? same->maps
                                : maps_on_device(subjects_[i], layer);
      }
      for (Stream& stream : streams_) {
        if (stream.first_layer == layer && layer > 0) stream.hidden = streams_[stream.base].hidden;
      }
      for (Stream& stream : streams_) {
        if (layer < stream.first_layer) continue;
        const BlockRunner& runner =
            pair.adapted && has_students_weights(stream.column) ? *pair.adapted : pair.teacher;
        for (std::size_t i = 0; i < group.size(); ++i) {
          at::Tensor& hidden = stream.hidden[i];
          const RopeTable& rope = texts_[group[i].text].rope;
          if (stream.column == Column::kTeacher && pair.adapted && subjects_.front().maps)
            predict_adapted(*pair.adapted, hidden, rope);
          hidden = runner.run(hidden,
                              rope,
                              attention(stream, before + i),
                              {.check_cancelled = options_.check_cancelled});
        }
      }
      if (options_.progress &&
          !options_.progress(layers_before + layer + 1, layers_in_all, mean_loss()))
        return false;
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      add_sequence(group[i], i, before + i);
      for (const Subject& subject : subjects_) require_finite(group[i], subject, before + i);
    }
    return true;
  }

 private:
  void add_subject(Subject subject) {
    kernels::HybridOptions window, equal_window;
    if (subject.shape.control) {
      window = subject.shape.control->attention;
      equal_window = window;
      equal_window.window_size = subject.shape.equal_window;
    }
    for (const Column column : subject.shape.columns) {
      Stream stream{.column = column, .subject = subjects_.size()};
      stream.window = column == Column::kEqualWindow ? equal_window : window;
      if (column == Column::kStudent && subject.softmax_layer > 0 &&
          subject.student == options_.student) {
        stream.first_layer = subject.softmax_layer;
        stream.base = subjects_.front().streams[at_column(Column::kStudent)];
      }
      subject.streams[at_column(column)] = place_of(std::move(stream), subject);
    }
    subject.part.compute_dtype = dtype_word(options_.compute_dtype);
    for (int layer = 0; layer < model_.config().num_hidden_layers; ++layer) {
      const kernels::HybridParameters* maps = parameters(subject, layer);
      if (maps != nullptr && is_linear_branch_off(*maps))
        subject.part.untrained_layers.push_back(layer);
    }
    subjects_.push_back(std::move(subject));
  }

  // Of one that is computed alike, or its own behind all others.
  std::size_t place_of(Stream stream, const Subject& subject) {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const Stream& other = streams_[i];
      if (other.column != stream.column || has_students_weights(stream.column)) continue;
      if (stream.column == Column::kTeacher) return i;
      const Control& own = *subject.shape.control;
      if (other.window.window == stream.window.window &&
          other.window.window_size == stream.window.window_size &&
          other.window.num_sinks == stream.window.num_sinks &&
          subjects_[other.subject].shape.control->softmax_layers == own.softmax_layers)
        return i;
    }
    streams_.push_back(std::move(stream));
    return streams_.size() - 1;
  }

  [[nodiscard]] LoadHooks hooks() const {
    return {options_.check_cancelled, [this](int layer, const storage::Hash128& hash) {
              if (options_.check_hash) options_.check_hash(layer, hash);
              if (options_.student != nullptr)
                options_.student->require_teacher(model_, layer, hash);
              for (const OtherStudent& other : options_.others)
                other.student->require_teacher(model_, layer, hash);
            }};
  }
  // Of the first subject on the first text, so far; a sequence's loss is there once its group has
  // passed all layers.
  [[nodiscard]] double mean_loss() const {
    const Subject& subject = subjects_.front();
    double loss = 0.0;
    std::int64_t targets = 0;
    for (const SequenceSums& sequence : subject.part.sequences) {
      if (sequence.text != 0) continue;
      loss += sequence.columns[at_column(subject.shape.subject)].all.loss;
      targets += sequence.columns[at_column(subject.shape.subject)].all.targets;
    }
    return targets > 0 ? loss / static_cast<double>(targets) : 0.0;
  }

  static bool has_students_weights(Column column) {
    return column == Column::kStudent || column == Column::kRecallOff ||
           column == Column::kLinearOff;
  }

  void require_finite(const Place& place, const Subject& subject, std::size_t sequence) const {
    for (const Column column : subject.shape.columns) {
      if (std::isfinite(subject.part.sequences[sequence].columns[at_column(column)].all.loss))
        continue;
      throw Error(ErrorKind::kUsage,
                  "the loss of sequence " + std::to_string(place.index) + " of " +
                      texts_[place.text].of + " is not finite (" +
                      std::string(storage::kEvaluateColumns[at_column(column)].name) +
                      "); check the model's weights");
    }
  }

  LayerPair load(int layer_idx) const {
    LayerWeights layer =
        load_layer(model_, layer_idx, options_.compute_dtype, options_.device, hooks());
    std::optional<LayerWeights> adapted;
    if (options_.adapter != nullptr) {
      adapted = layer;
      merge_into(*adapted, *options_.adapter, layer_idx, model_.config());
    }
    pack_layer(layer, texts_.front().tokens.seq_len);
    if (adapted) {
      // What the adapter does not change is packed once.
      const LayerLora lora = options_.adapter->of_layer(layer_idx);
      for (const ProductSlots& product : kProducts) {
        if (std::ranges::none_of(product.all(),
                                 [&](auto slot) { return lora.pairs.contains(slot); }))
          *adapted.*product.product = layer.*product.product;
      }
      pack_layer(*adapted, texts_.front().tokens.seq_len);
    }
    const auto runner = [&](LayerWeights weights) {
      return BlockRunner(model_.config(), layer_idx, {std::move(weights)}, options_.compute_dtype);
    };
    LayerPair pair{runner(std::move(layer)), std::nullopt};
    if (adapted) pair.adapted = runner(*std::move(adapted));
    return pair;
  }

  // [1, T] int64, on the CPU.
  [[nodiscard]] at::Tensor token_ids(const Place& place) const {
    const auto ids = texts_[place.text].tokens.sequence(place.index);
    const at::Tensor input_ids = at::empty({1, static_cast<std::int64_t>(ids.size())}, at::kLong);
    std::copy(ids.begin(), ids.end(), input_ids.data_ptr<std::int64_t>());
    return input_ids;
  }

  [[nodiscard]] at::Tensor start(const Place& place) const {
    return embed(token_ids(place).to(options_.device), outer_.embed_tokens);
  }

  static const kernels::HybridParameters* parameters(const Subject& subject, int layer) {
    if (subject.student == nullptr) return nullptr;
    const auto& found = subject.student->layers.at(static_cast<std::size_t>(layer));
    return found ? &*found : nullptr;
  }

  // The maps of one layer alone: those of all would grow with the model.
  [[nodiscard]] std::optional<kernels::HybridParameters> maps_on_device(const Subject& subject,
                                                                        int layer) const {
    if (parameters(subject, layer) == nullptr) return std::nullopt;
    kernels::HybridParameters maps = *parameters(subject, layer);
    for (const TrainedPart& part : parts_of(maps, layer))
      *part.value = part.value->to(options_.device);
    return maps;
  }

  Attend attention(const Stream& stream, std::size_t sequence) {
    const Subject& subject = subjects_[stream.subject];
    switch (stream.column) {
      case Column::kTeacher:
        return measuring_teacher(sequence);
      case Column::kStudent:
        return student_with(subject, subject.student->options);
      case Column::kRecallOff:
        return student_with(subject, subject.student->options.in_training());
      case Column::kControl:
      case Column::kEqualWindow:
      case Column::kLinearOff:
        break;
    }
    return [&stream, &subject](int layer, const Qkv& qkv) {
      if (subject.shape.control->softmax_layers.contains(layer)) return teacher_attention(qkv);
      return kernels::window_attention(qkv.q, qkv.k, qkv.v, stream.window);
    };
  }

  static Attend student_with(const Subject& subject, const kernels::HybridOptions& options) {
    return [&subject, options](int layer, const Qkv& qkv) {
      const bool returns = layer == subject.softmax_layer;
      if (!subject.maps || (returns && subject.softmax_head < 0)) return teacher_attention(qkv);
      at::Tensor output = kernels::hybrid_attention(qkv.q, qkv.k, qkv.v, *subject.maps, options);
      if (returns) {
        const std::int64_t queries = qkv.q.size(1) / qkv.k.size(1);
        const std::int64_t first = subject.softmax_head * queries;
        const at::Tensor kept = teacher_attention(qkv).narrow(1, first, queries);
        output.narrow(1, first, queries).copy_(kept);
      }
      return output;
    };
  }

  // The student's attention output on the teacher's own path, unrounded.
  static at::Tensor predicted(const Subject& subject, const Qkv& qkv) {
    kernels::HybridOptions unrounded = subject.student->options;
    unrounded.fp32_output = true;
    return kernels::hybrid_attention(qkv.q, qkv.k, qkv.v, *subject.maps, unrounded);
  }

  // With an adapter q, k and v are its own, of the hidden states that the teacher has (LoLCATs'
  // figure 15).
  void predict_adapted(const BlockRunner& adapted,
                       const at::Tensor& hidden,
                       const RopeTable& rope) {
    const auto keep = [this](int /*layer*/, const Qkv& qkv) {
      return adapted_ = predicted(subjects_.front(), qkv);
    };
    adapted.run(
        hidden, rope, keep, {.finish_last = false, .check_cancelled = options_.check_cancelled});
  }

  Attend measuring_teacher(std::size_t sequence) {
    return [this, sequence](int layer, const Qkv& qkv) {
      const at::Tensor y_true = teacher_attention(qkv);
      at::Tensor truth;
      for (Subject& subject : subjects_) {
        if (!subject.maps || subject.softmax_layer >= 0) continue;
        if (!truth.defined()) truth = y_true.to(at::kFloat);
        const at::Tensor y_pred = options_.adapter != nullptr ? adapted_ : predicted(subject, qkv);
        subject.part.sequences[sequence].layers.push_back(
            {layer,
             (y_pred - truth).square().sum(at::kDouble).item<double>(),
             truth.square().sum(at::kDouble).item<double>(),
             truth.numel()});
      }
      return y_true;
    };
  }

  [[nodiscard]] Scores scores(Column column,
                              const at::Tensor& hidden,
                              std::int64_t first,
                              std::int64_t count) {
    const at::Tensor rows = hidden.squeeze(0).narrow(0, first, count);
    const OuterWeights& outer = has_students_weights(column) ? students_outer_ : outer_;
    const at::Tensor of_rows = logits(rows, outer, model_.config());
    return {of_rows, of_rows.logsumexp(-1)};
  }

  // Row t predicts token t + 1.
  void add_sequence(const Place& place, std::size_t in_group, std::size_t sequence) {
    const std::int64_t seq_len = texts_[place.text].tokens.seq_len;
    const Subject& subject = subjects_.front();
    const std::size_t given = subject.streams[at_column(subject.shape.subject)];
    const at::Tensor next = token_ids(place).squeeze(0).roll(-1).unsqueeze(1).to(options_.device);
    for (std::int64_t first = 0; first < seq_len; first += kLogitRows) {
      const std::int64_t count = std::min(kLogitRows, seq_len - first);
      const at::Tensor targets = next.narrow(0, first, count);
      const auto of = [&](std::size_t stream) {
        options_.check_cancelled();
        Scores found =
            scores(streams_[stream].column, streams_[stream].hidden[in_group], first, count);
        if (stream == given && place.text == 0 && options_.logits)
          options_.logits(place.index, first, found.logits);
        return found;
      };
      const Scores teacher = of(0);
      const at::Tensor none = at::zeros({count}, at::kFloat), all = at::ones({count}, at::kFloat);
      add_rows(place, sequence, first, 0, teacher, targets, none, all);
      if (streams_.size() == 1) continue;
      const at::Tensor probabilities = (teacher.logits - teacher.normalizer.unsqueeze(1)).exp_();
      const at::Tensor best = teacher.logits.argmax(-1);
      for (std::size_t stream = 1; stream < streams_.size(); ++stream) {
        const Scores own = of(stream);
        const at::Tensor kl = (teacher.logits - own.logits).mul_(probabilities).sum(-1) +
                              (own.normalizer - teacher.normalizer);
        const at::Tensor agrees = own.logits.argmax(-1).eq(best).to(at::kFloat);
        add_rows(place, sequence, first, stream, own, targets, kl.cpu(), agrees.cpu());
      }
    }
  }

  // kl and agrees [rows] fp32 on the CPU, of the rows that begin at `first`; for each subject that
  // has the stream.
  void add_rows(const Place& place,
                std::size_t sequence,
                std::int64_t first,
                std::size_t stream,
                const Scores& scores,
                const at::Tensor& targets,
                const at::Tensor& kl,
                const at::Tensor& agrees) {
    const Text& text = texts_[place.text];
    const auto mask = text.tokens.mask(place.index);
    const at::Tensor losses =
        (scores.normalizer - scores.logits.gather(1, targets).squeeze(1)).cpu();
    for (Subject& subject : subjects_) {
      for (const Column column : subject.shape.columns) {
        if (subject.streams[at_column(column)] != stream) continue;
        ColumnFigures& sums = subject.part.sequences[sequence].columns[at_column(column)];
        const std::int64_t beyond = subject.shape.beyond;
        for (std::int64_t i = 0; i < losses.numel() && first + i + 1 < text.tokens.seq_len; ++i) {
          const std::int64_t position = first + i + 1;
          if (mask[static_cast<std::size_t>(position)] == 0) continue;
          for (Figures* figures : {&sums.all, &sums.beyond}) {
            if (figures == &sums.beyond && (beyond == 0 || position < beyond)) continue;
            figures->loss += losses.const_data_ptr<float>()[i];
            figures->kl += kl.const_data_ptr<float>()[i];
            figures->top1 += agrees.const_data_ptr<float>()[i];
            ++figures->targets;
          }
        }
      }
    }
  }

  const storage::ModelDirectory& model_;
  const EvaluateOptions& options_;
  OuterWeights outer_;
  OuterWeights students_outer_;  // with the final norm that its finetune trained
  std::vector<Subject> subjects_;  // the first, then options_.others
  std::vector<Stream> streams_;    // the teacher's first
  at::Tensor adapted_;  // predict_adapted()'s, until the teacher's is there
  std::vector<Text> texts_;  // the first, then options_.texts
};

}  // namespace

Evaluation evaluation_of_other(const storage::ModelDirectory& model,
                               const std::vector<TextShape>& texts,
                               const EvaluationPart& part,
                               const OtherStudent& other) {
  return evaluation_of(shape_of_other(*other.student, model), texts, part, model.config());
}

std::vector<TextShape> text_shapes(std::int64_t seq_len, const std::vector<EvaluationText>& texts) {
  std::vector<TextShape> shapes{{.name = "", .in_domain = false, .seq_len = seq_len}};
  for (const EvaluationText& text : texts)
    shapes.push_back({text.name, text.in_domain, text.tokens->seq_len});
  return shapes;
}

std::optional<EvaluationPart> evaluate_part(const storage::ModelDirectory& model,
                                            const storage::TokenSequences& tokens,
                                            const std::vector<std::int64_t>& sequences,
                                            const EvaluateOptions& options) {
  std::vector<Place> places;
  std::int64_t longest = 0;
  const auto add = [&](const storage::TokenSequences& of,
                       const std::vector<std::int64_t>& taken,
                       std::size_t text) {
    if (taken.empty()) {
      throw Error(ErrorKind::kUsage,
                  "nothing to evaluate: the tokens file " +
                      (text == 0 ? "" : "of " + options.texts[text - 1].name + " ") +
                      "has no sequence");
    }
    model.config().require_within_window(of.seq_len,
                                         "a sequence of " + std::to_string(of.seq_len) + " tokens");
    longest = std::max(longest, of.seq_len);
    for (const std::int64_t index : taken) places.push_back({text, index});
  };
  add(tokens, sequences, 0);
  for (std::size_t i = 0; i < options.texts.size(); ++i)
    add(*options.texts[i].tokens, options.texts[i].sequences, i + 1);
  AttentionPath path = attention_path(
      AttentionUse::kEvaluate, model.config(), options.device, options.compute_dtype);
  if (options.student != nullptr) {
    path.parameters = first_parameters(options.student->layers);
    path.options = options.student->options;
  }
  say_attention(path);
  const storage::PieceRange range = storage::sequences_of_piece(
      static_cast<std::int64_t>(places.size()), options.piece, options.num_pieces);
  Evaluator evaluator(model, tokens, options);
  const std::int64_t bytes = longest * model.config().hidden_size *
                             static_cast<std::int64_t>(c10::elementSize(options.compute_dtype));
  const std::int64_t per_group = storage::sequences_of_evaluate_group(
      bytes, evaluator.num_streams(), options.device.is_cuda());
  const std::int64_t num_layers = model.config().num_hidden_layers;
  const std::int64_t groups = (range.count + per_group - 1) / per_group;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = range.first + group * per_group;
    const std::int64_t end = std::min(first + per_group, range.first + range.count);
    if (!evaluator.add_group({places.begin() + first, places.begin() + end},
                             group * num_layers,
                             groups * num_layers))
      return std::nullopt;
  }
  return evaluator.part();
}

Evaluation evaluate(const storage::ModelDirectory& model,
                    const storage::TokenSequences& tokens,
                    const std::vector<std::int64_t>& sequences,
                    const EvaluateOptions& options) {
  const auto part = evaluate_part(model, tokens, sequences, options);
  if (!part) return {};
  return evaluation_of(
      shape_for(model, options), text_shapes(tokens.seq_len, options.texts), *part, model.config());
}

}  // namespace hedgerow::worker
