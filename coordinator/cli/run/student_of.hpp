// Another last stage on a student that is there: a run that begins where another one's last stage
// did, with all that lies before it.
#pragma once

#include <string>

#include "storage/files/run_layout.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// Throws kUsage where `from` has no assembled student yet, or where `recipe` differs from that
// run's in more than the last stage and what a resume may change: each field with both values.
void require_same_student(const storage::RunLayout& from, const storage::Recipe& recipe);

// Puts into the new run `to`, which has its run.toml and nothing else, the files that `from`
// committed before its last stage (as hard links where the file system has them, else copied) and a
// journal of their records: its coordinator goes on with the last stage. What `from` has dropped
// since (boundaries, the teacher's logits) is captured again if the last stage needs it.
void take_student_of(const storage::RunLayout& from, const storage::RunLayout& to);

}  // namespace hedgerow::coordinator::cli
