#include "coordinator/cli/run/gpu.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "coordinator/machine/gpus.hpp"
#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

TEST(Gpu, VisibleOnesAreTheDriversNarrowedByTheEnvironment) {
  const tests::TemporaryDirectory dev;
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), nullptr), 0);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia2", "nvidiactl"})
    std::ofstream(dev.path() / name) << "";
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), nullptr), 3);
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), "1,2"), 2);
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), "GPU-8932f937"), 1);
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), "0,1,2,3,4,5,6,7"), 3) << "more than there are";
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), ""), 0);
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), "-1"), 0);
}

TEST(Gpu, AContainerMayHaveADeviceOfAnyNumberAlone) {
  const tests::TemporaryDirectory dev;
  for (const char* name : {"nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "null"})
    std::ofstream(dev.path() / name) << "";
  EXPECT_EQ(machine::num_visible_gpus(dev.path(), nullptr), 2);
}

TEST(Gpu, AutoFollowsTheBuildAndThisMachineUnlessAllWorkersAreElsewhere) {
  storage::Recipe recipe;
  recipe.workers.local = 2;
  EXPECT_TRUE(computes_on_gpus(recipe, /*has_cuda=*/true, /*num_gpus=*/1));
  EXPECT_FALSE(computes_on_gpus(recipe, true, 0));
  EXPECT_FALSE(computes_on_gpus(recipe, false, 1)) << "a GPU that the build cannot use";
  recipe.workers.local = 0;
  EXPECT_TRUE(computes_on_gpus(recipe, true, 0)) << "a login node without a GPU";
  recipe.plan.device = "cpu";
  EXPECT_FALSE(computes_on_gpus(recipe, true, 8));
  recipe.plan.device = "cuda";
  EXPECT_TRUE(computes_on_gpus(recipe, false, 0));
}

TEST(Gpu, CudaThatLocalWorkersCannotHaveIsRefusedBeforeTheyStart) {
  storage::Recipe recipe;
  recipe.plan.device = "cuda";
  recipe.workers.local = 2;
  const auto kind = [&recipe](bool has_cuda, int num_gpus) {
    try {
      require_device(recipe, has_cuda, num_gpus);
    } catch (const storage::Error& error) {
      return std::string(to_string(error.kind()));
    }
    return std::string("none");
  };
  EXPECT_EQ(kind(/*has_cuda=*/false, /*num_gpus=*/1), "usage");
  EXPECT_EQ(kind(true, 0), "unavailable");
  EXPECT_EQ(kind(true, 1), "none");
  recipe.workers.local = 0;
  EXPECT_EQ(kind(true, 0), "none") << "the workers are elsewhere";
  recipe.plan.device = "auto";
  EXPECT_EQ(kind(false, 0), "none");
}

storage::ProcessCounts counts(const storage::Recipe& recipe) {
  return {recipe.workers.local, recipe.finetune.ranks};
}

// Catches: six of a node's eight cards idle, or two replicas of a model on its only one, because
// the recipe says nothing.
TEST(Gpu, ARecipeWithoutNumbersMeansAWorkerAndARankAGpu) {
  const tests::TemporaryDirectory scratch;
  const auto load = [&scratch](const std::string& text,
                               const MachineGpus& machine,
                               const std::string& device = "",
                               std::optional<int> workers = std::nullopt) {
    std::ofstream(scratch / "recipe.toml") << "[model]\npath = \"/model\"\n"
                                              "[data.transfer]\nsources = [{ path = \"/text\" }]\n"
                                           << text;
    return counts(load_for_this_machine(scratch / "recipe.toml", device, workers, machine));
  };
  using Counts = storage::ProcessCounts;
  const MachineGpus one{true, 1}, eight{true, 8};
  EXPECT_EQ(load("", one), (Counts{1, 1}));
  EXPECT_EQ(load("", eight), (Counts{8, 8}));
  EXPECT_EQ(load("", {true, 0}), Counts{}) << "no GPU";
  EXPECT_EQ(load("", {false, 8}), Counts{}) << "a build without CUDA";
  EXPECT_EQ(load("[plan]\ndevice = \"cpu\"\n", eight), Counts{});
  EXPECT_EQ(load("", eight, "cpu"), Counts{}) << "--device cpu";
  EXPECT_EQ(load("[workers]\nlocal = 2\n", eight), (Counts{2, 2})) << "its ranks fit its workers";
  EXPECT_EQ(load("[workers]\nlocal = 2\n", one), (Counts{2, 1}));
  EXPECT_EQ(load("[workers]\nlocal = 0\n", eight), (Counts{0, 8}));
  EXPECT_EQ(load("[finetune]\nranks = 2\n", eight), (Counts{8, 2}));
  EXPECT_EQ(load("[finetune]\nmesh = \"1x2\"\n", eight), (Counts{8, 2})) << "as the mesh has";
  EXPECT_EQ(load("[finetune]\nlaunch = \"elsewhere\"\n", eight), (Counts{8, 2}));
  EXPECT_EQ(load("", eight, "", 4), (Counts{8, 4})) << "--workers 4 counts in place of the first";
}

TEST(Gpu, CardsThatNoLocalWorkerUsesAreNamed) {
  storage::Recipe recipe;
  EXPECT_EQ(
      idle_gpus_warning(recipe, 2, {true, 8}),
      "8 GPUs are visible, but 2 local workers start: the others stand idle; use --workers 8, "
      "set workers.local = 8 in the recipe, or hide them with CUDA_VISIBLE_DEVICES");
  EXPECT_NE(idle_gpus_warning(recipe, 1, {true, 2}).find("1 local worker starts"),
            std::string::npos);
  EXPECT_EQ(idle_gpus_warning(recipe, 8, {true, 8}), "");
  EXPECT_EQ(idle_gpus_warning(recipe, 0, {true, 8}), "") << "the workers are elsewhere";
  EXPECT_EQ(idle_gpus_warning(recipe, 2, {false, 8}), "")
      << "doctor says that the build has no CUDA";
  recipe.plan.device = "cpu";
  EXPECT_EQ(idle_gpus_warning(recipe, 2, {true, 8}), "");
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
