#include "coordinator/cli/run/tokenizing.hpp"

#include <algorithm>

#include "coordinator/cli/programs/programs.hpp"
#include "storage/files/file.hpp"
#include "storage/files/scoped_file.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/tokens_section.hpp"

namespace hedgerow::coordinator::cli {

namespace fs = std::filesystem;
using storage::TokensOf;

namespace {

// "evaluate", "evaluate wikitext2".
std::string name_of(const TokensOf& of) {
  return storage::to_string(of.stage) + (of.text.empty() ? "" : " " + of.text);
}

}  // namespace

nlohmann::json tokenize(const TokenizeRequest& request, Terminal& terminal) {
  // A file and not stdin: where nothing can be written beside it, the text is not read first.
  fs::path section = request.out;
  section += ".section.json";
  fs::create_directories(fs::absolute(section).parent_path());
  // A path that is no UTF-8 has no JSON; the script says that it finds no such file.
  storage::write_atomically(section,
                            storage::tokens_section(request.recipe, request.of)
                                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  nlohmann::json done;
  const storage::ScopedFile goes_again(section);
  run_python(terminal,
             "tokenize " + name_of(request.of),
             "make_tokens.py",
             {"--section",
              section,
              "--model",
              storage::ModelDirectory::locate(request.model),
              "--out",
              request.out},
             [&](const nlohmann::json& object) {
               if (object.value("event", "") == "done") done = object;
             });
  return done;
}

std::vector<TokensOf> missing_tokens(const storage::RunLayout& layout,
                                     const storage::Recipe& recipe) {
  std::vector<TokensOf> files = recipe.tokens_files();
  std::erase_if(files, [&](const TokensOf& of) {
    return fs::exists(layout.root() / storage::RunLayout::tokens(of));
  });
  return files;
}

void remove_tokens(const storage::RunLayout& layout) {
  for (const std::string& name : layout.existing_tokens()) fs::remove(layout.root() / name);
}

bool tokenize_missing(const storage::RunLayout& layout,
                      const storage::Recipe& recipe,
                      Terminal& terminal) {
  // A file that was there before may have been made for a recipe of fewer steps.
  std::vector<TokensOf> made;
  for (const TokensOf& of : recipe.tokens_files()) {
    const fs::path out = layout.resolve(storage::RunLayout::tokens(of));
    if (fs::exists(out)) {
      terminal.detail(out.string() + ": there already");
      continue;
    }
    if (const auto shared = shares_tokens_of(recipe, of);
        shared && std::ranges::count(made, *shared) > 0) {
      fs::remove(out);  // one that leads nowhere
      fs::create_symlink(layout.resolve(storage::RunLayout::tokens(*shared)).filename(), out);
      terminal.say(name_of(of) + ": the tokens of " + name_of(*shared));
      continue;
    }
    const nlohmann::json done = tokenize({recipe, recipe.model.path, of, out}, terminal);
    if (done.is_null()) return false;
    made.push_back(of);
    terminal.say("tokenized " + name_of(of) + ": " + tokens_text(done));
  }
  return true;
}

std::string tokens_text(const nlohmann::json& done) {
  return std::to_string(done.value("sequences", 0)) + " sequences of " +
         std::to_string(done.value("seq_len", 0)) + " tokens, " +
         std::to_string(done.value("num_train", 0)) + " for training";
}

}  // namespace hedgerow::coordinator::cli
