// What a recipe leaves open, as those who will compute decide it.
#include "coordinator/cli/run/planning.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace hedgerow::coordinator::cli {
namespace {

storage::Recipe open_recipe() {
  storage::Recipe recipe;
  recipe.workers.threads = recipe.finetune.threads = 0;
  recipe.workers.local = 1;
  return recipe;
}

// Otherwise a coordinator on a small node would have every GPU node of its run compute with as few
// threads as it has cores itself.
TEST(Resolve, LeavesThreadsOpenThatAreOfOtherMachines) {
  ::unsetenv("SLURM_JOB_ID");
  storage::Recipe recipe = open_recipe();
  resolve(recipe, plan_for(recipe, "."));
  EXPECT_GT(recipe.workers.threads, 0);
  EXPECT_GT(recipe.finetune.threads, 0);

  recipe = open_recipe();
  recipe.workers.local = 0;
  recipe.finetune.launch = "elsewhere";
  resolve(recipe, plan_for(recipe, "."));
  EXPECT_EQ(recipe.workers.threads, 0);
  EXPECT_EQ(recipe.finetune.threads, 0);

  recipe.workers.threads = recipe.finetune.threads = 8;
  resolve(recipe, plan_for(recipe, "."));
  EXPECT_EQ(recipe.workers.threads, 8);
  EXPECT_EQ(recipe.finetune.threads, 8);
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
