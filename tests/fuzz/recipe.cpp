// Recipe::parse: a TOML file that somebody wrote by hand or got from somewhere.
#include "storage/recipe/recipe.hpp"

#include "storage/base/error.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace hedgerow;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string toml;
  try {
    const storage::Recipe recipe =
        storage::Recipe::parse(std::string(fuzz::text_of(data, size)), "recipe.toml");
    recipe.validate("recipe.toml");
    toml = recipe.to_toml();
    fuzz::expect(storage::Recipe::parse(toml, "run.toml") == recipe,
                 "the resolved recipe reads back the same");
  } catch (const storage::Error& error) {
    fuzz::expect(error.kind() == storage::ErrorKind::kUsage, "a wrong recipe is kUsage");
    fuzz::expect(toml.empty(), "the resolved recipe is accepted");
  }
  return 0;
}
