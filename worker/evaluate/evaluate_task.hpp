// The task of an evaluation: its sequences, its files and its result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/wire/messages.hpp"
#include "storage/recipe/recipe.hpp"
#include "worker/evaluate/evaluate.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

// The sequences that an evaluation takes from a file: its validation split, or all when it has
// none; at most `limit` (0: all).
std::vector<std::int64_t> evaluation_sequences(const storage::TokenSequences& tokens,
                                               std::int64_t limit);

// Tokens of an evaluation, its texts' included.
std::int64_t tokens_in(const storage::TokenSequences& tokens,
                       const std::vector<std::int64_t>& sequences,
                       const std::vector<EvaluationText>& texts);

// The texts of a recipe, `limit` sequences of each, whose tokens `load` gives by name.
std::vector<EvaluationText> texts_of(
    const storage::Recipe& recipe,
    std::int64_t limit,
    const std::function<const storage::TokenSequences&(const std::string& name)>& load);

// task.subject: teacher | transfer | lora, task.inputs the student's and the adapter's files.
// Writes evaluate/<subject>.tN.json under attempts/t<token>/. With task.num_pieces: piece
// task.piece, whose sums go to evaluate/<subject>.pNN.tN.json; without a piece the inputs are the
// pieces' files, in order, and the result is put together from them: the bytes of one task's but
// for the times.
TaskResult run_evaluate(RunContext& run, TaskContext& context, const wire::Task& task);

}  // namespace hedgerow::worker
