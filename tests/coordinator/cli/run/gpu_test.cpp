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
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), nullptr), 0);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia2", "nvidiactl"})
    std::ofstream(dev.path() / name) << "";
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), nullptr), 3);
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), "1,2"), 2);
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), "GPU-8932f937"), 1);
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), "0,1,2,3,4,5,6,7"), 3) << "more than there are";
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), ""), 0);
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), "-1"), 0);
}

TEST(Gpu, AContainerMayHaveADeviceOfAnyNumberAlone) {
  const tests::TemporaryDirectory dev;
  for (const char* name : {"nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "null"})
    std::ofstream(dev.path() / name) << "";
  EXPECT_EQ(wire::num_visible_gpus(dev.path(), nullptr), 2);
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

}  // namespace
}  // namespace hedgerow::coordinator::cli
