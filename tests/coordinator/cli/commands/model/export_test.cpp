// export, generate and evaluate: what they hand to other programs, with shell scripts in place of
// Python and the worker.
#include <csignal>

#include "coordinator/cli/export/export_directory.hpp"
#include "coordinator/cli/export/model_card.hpp"
#include "coordinator/cli/export/model_choice.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/journal/journal.hpp"
#include "storage/model/model_config.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/small_run.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

class Export : public ::testing::Test {
 protected:
  Export() {
    const fs::path modeling = run_.scratch / "huggingface/modeling";
    fs::create_directories(modeling);
    for (const auto& entry :
         fs::directory_iterator(fs::path(HEDGEROW_SOURCE_DIR) / "deploy/huggingface/modeling")) {
      if (entry.path().extension() == ".py") {
        std::ofstream(modeling / entry.path().filename()) << "# modeling\n";
      }
    }
    std::ofstream(run_.scratch / "model/tokenizer.json") << "{}";
    std::ofstream(run_.scratch / "model/old.bin") << "pickle";
  }

  void write_script(const std::string& name, const std::string& text) {
    std::ofstream(run_.scratch / name) << "#!/bin/sh\n" << text;
    fs::permissions(run_.scratch / name, fs::perms::owner_all);
  }

  Answer run_here(std::vector<std::string> arguments, FakeConsole console = {}) {
    console.variables["HEDGEROW_HUGGINGFACE"] = (run_.scratch / "huggingface").string();
    console.variables["HEDGEROW_PYTHON"] = "/bin/sh";
    console.variables["HEDGEROW_WORKER"] = (run_.scratch / "worker").string();
    arguments.insert(arguments.end(), {"--run", run_.directory()});
    return run_line(std::move(arguments), console);
  }

  [[nodiscard]] nlohmann::json read_json(const std::string& name) const {
    return nlohmann::json::parse(storage::read_text(run_.scratch / name));
  }

  SmallRun run_;
};

TEST_F(Export, DirectoryHoldsEveryTensorOnceAndWhatTransformersLooksFor) {
  const Answer answer = run_here({"export", "--out", run_.scratch / "out", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const nlohmann::json config = read_json("out/config.json");
  EXPECT_EQ(config["model_type"], "llama") << "AutoTokenizer would ask about any other";
  EXPECT_EQ(config["hidden_act"], "hedgerow, which needs trust_remote_code=True");
  EXPECT_EQ(config["hedgerow"]["hidden_act"], "silu");
  EXPECT_EQ(config["hedgerow"]["body"], "llama");
  EXPECT_EQ(config["hedgerow"]["softmax_layers"], nlohmann::json::array({1}));
  EXPECT_EQ(config["vocab_size"], 32) << "the teacher's own keys stay";
  const nlohmann::json weight_map = read_json("out/model.safetensors.index.json")["weight_map"];
  EXPECT_EQ(weight_map["model.layers.0.self_attn.feature_map_q.mlp.layer"],
            "model-00002-of-00002.safetensors");
  EXPECT_EQ(weight_map["model.embed_tokens.weight"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(weight_map.size(), answer.json.at(0)["tensors"]);
  for (const auto& entry : fs::directory_iterator(run_.scratch / "huggingface/modeling")) {
    EXPECT_TRUE(fs::exists(run_.scratch / "out" / entry.path().filename())) << entry.path();
  }
  EXPECT_TRUE(fs::exists(run_.scratch / "out/tokenizer.json"));
  EXPECT_TRUE(fs::exists(run_.scratch / "out/README.md"));
  EXPECT_FALSE(fs::exists(run_.scratch / "out/old.bin"));
  EXPECT_FALSE(fs::exists(run_.scratch / "out/model.safetensors"))
      << "transformers would read it before the index";
}

TEST_F(Export, ModelCardSaysWhatTheRunKnowsAndIsNotTheTeachers) {
  std::ofstream(run_.scratch / "model/README.md") << "the teacher's card";
  ASSERT_EQ(run_here({"export", "--out", (run_.scratch / "out/").string()}).code, 0);
  const std::string card = storage::read_text(run_.scratch / "out/README.md");
  EXPECT_TRUE(card.starts_with("---\nbase_model: \"model\"\nlibrary_name: transformers\n")) << card;
  for (const char* part : {"# out\n",
                           "window = \"terraced\"\n",
                           "softmax_layers = [1]\n",
                           "each layer alone: 60 steps of 1 x 4 tokens\n",
                           "| after the transfer | - | 0.1767 | 0.5 |\n",
                           "from_pretrained(\"out\", trust_remote_code=True)",
                           "`HEDGEROW_OPS=/path/to/libhedgerow_ops.so`"}) {
    EXPECT_NE(card.find(part), std::string::npos) << part << "\n" << card;
  }
  EXPECT_EQ(card.find("LoRA of rank"), std::string::npos) << "the student has none";
}

TEST_F(Export, ModelCardSaysWhichStepTheAdapterIsOf) {
  run_.append({Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"},
               TaskDone{5, {}, {{"steps", 40}, {"best_step", 20}}}});
  ModelChoice choice;
  choice.model = run_.scratch / "model";
  choice.student = run_.layout.root() / SmallRun::student();
  choice.run = run_.directory();
  choice.lora = "adapter";
  EXPECT_NE(model_card(choice, run_.scratch / "out")
                .find("; adapter of step 20 of 40, the best by validation\n"),
            std::string::npos);
}

TEST_F(Export, ModelCardNamesTheTeacherAsItsHubDoes) {
  EXPECT_EQ(teacher_name("org/name"), "org/name");
  EXPECT_EQ(teacher_name("/cache/models--org--a-name/snapshots/1f/"), "org/a-name");
  EXPECT_EQ(teacher_name("/models/teacher/"), "teacher");
}

TEST_F(Export, OnlyWhatTakesTheTeacherOffersIt) {
  fs::remove_all(run_.layout.journal_directory());
  const Answer generated = run_here({"generate", "--prompt", "It"});
  EXPECT_NE(generated.err.find("--subject teacher"), std::string::npos) << generated.err;
  const Answer exported = run_here({"export", "--out", run_.scratch / "out"});
  EXPECT_EQ(exported.code, 2);
  EXPECT_NE(exported.err.find("no student yet"), std::string::npos) << exported.err;
  EXPECT_EQ(exported.err.find("teacher"), std::string::npos) << exported.err;
}

// An export of 3 layers' maps beside a model of other weights would load, and talk nonsense.
TEST_F(Export, AStudentAnAdapterAndAModelThatDoNotBelongTogetherAreRefused) {
  const std::string model = run_.scratch / "model", out = run_.scratch / "out";
  const fs::path student = run_.scratch / "student", lora = run_.scratch / "lora";
  fs::copy(run_.layout.root() / SmallRun::student(), student);
  const auto describe = [&](const std::string& fingerprint) {
    std::ofstream(student / "hedgerow.json")
        << R"({"format": "student/1", "attention": {}, "softmax_layers": [],)"
        << R"( "teacher": {"fingerprint": ")" << fingerprint << "\"}}";
  };
  const auto refusal = [&](const std::string& command, const std::string& option = "") {
    std::vector<std::string> words{command, "--model", model, "--student", student};
    if (command == "export") words.insert(words.end(), {"--out", out});
    if (command == "evaluate") words.insert(words.end(), {"--tokens", run_.layout.recipe()});
    if (command == "generate") words.insert(words.end(), {"--prompt", "It"});
    if (!option.empty()) words.push_back(option);
    if (fs::exists(lora)) words.insert(words.end(), {"--lora", lora});
    const Answer answer = run_line(words);
    EXPECT_EQ(answer.code, 2) << answer.err;
    EXPECT_FALSE(fs::exists(out));
    return answer.err;
  };
  describe("of-another");
  for (const char* command : {"export", "generate", "evaluate"}) {
    EXPECT_NE(refusal(command).find("made from a teacher with fingerprint of-another"),
              std::string::npos);
  }
  EXPECT_NE(refusal("export", "--adapter").find("name the right model"), std::string::npos);
  describe(storage::ModelDirectory::open(model).fingerprint());
  fs::create_directories(lora);
  std::ofstream(lora / "adapter_config.json") << "{}";
  const std::vector<std::byte> zeros(8 * 24 * 4);
  storage::write_safetensors(lora / "adapter_model.safetensors",
                             {{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                               {storage::DType::kF32, {8, 24}, std::span(zeros)}}});
  EXPECT_NE(refusal("export", "--adapter").find("made for another model"), std::string::npos);
  std::ofstream(student / "hedgerow.json") << "{";
  EXPECT_NE(refusal("generate").find("hedgerow.json: not a JSON object"), std::string::npos);
  fs::resize_file(student / "feature_maps.safetensors", 20);
  EXPECT_NE(refusal("export").find("feature_maps.safetensors: header"), std::string::npos);
  fs::remove(student / "feature_maps.safetensors");
  EXPECT_NE(refusal("export").find("feature_maps.safetensors: No such file"), std::string::npos);
}

// The worker reads the same file and finds a number of sequences that is another's.
TEST_F(Export, EvaluateRefusesTokensOfARunThatAreNotThoseItBeganWith) {
  const std::string name = storage::RunLayout::tokens(storage::DataStage::kEvaluate);
  fs::copy_file(run_.layout.root() / storage::RunLayout::tokens(storage::DataStage::kTransfer),
                run_.layout.root() / name);
  fs::remove_all(run_.layout.journal_directory());
  RunInputs inputs;
  inputs.tokens = {{name,
                    fs::file_size(run_.layout.root() / name),
                    storage::hash_file(run_.layout.root() / name)}};
  Geometry geometry;
  geometry.num_layers = 3;
  geometry.num_shards = 1;
  run_.append({RunStarted{geometry, "test", inputs}});
  write_script("worker",
               "echo \"$@\" >" + (run_.scratch / "asked").string() +
                   "; echo '{\"subject\":\"teacher\",\"perplexity\":15.25}'\n");
  EXPECT_EQ(run_here({"evaluate", "--subject", "teacher"}).code, 0);
  EXPECT_NE(storage::read_text(run_.scratch / "asked").find("--recipe "), std::string::npos)
      << "the teacher's control is that of the run";
  EXPECT_EQ(storage::read_text(run_.scratch / "asked").find("--texts"), std::string::npos);
  const storage::Recipe before = storage::Recipe::load(run_.layout.recipe());
  storage::Recipe named = before;
  named.texts = {{.name = "wiki", .source = {.path = "/wiki.txt"}}};
  std::ofstream(run_.layout.recipe()) << named.to_run_toml();
  EXPECT_NE(run_here({"evaluate", "--subject", "teacher"})
                .err.find("evaluate-wiki.h5: no such tokens file"),
            std::string::npos);
  fs::copy_file(run_.layout.root() / name, run_.layout.root() / "tokens/evaluate-wiki.h5");
  EXPECT_EQ(run_here({"evaluate", "--subject", "teacher"}).code, 0);
  EXPECT_NE(storage::read_text(run_.scratch / "asked").find("--texts"), std::string::npos);
  std::ofstream(run_.layout.recipe()) << before.to_run_toml();
  run_.flip_byte(name, 200);
  const Answer damaged = run_here({"evaluate", "--subject", "teacher"});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_NE(damaged.err.find("hedgerow check --repair --run " + run_.directory()),
            std::string::npos)
      << damaged.err;
  fs::remove(run_.layout.root() / name);
  EXPECT_NE(run_here({"evaluate", "--subject", "teacher"}).err.find("'hedgerow run --run"),
            std::string::npos);
}

TEST_F(Export, LinkLeavesTheTeachersWeightsWhereTheyAre) {
  ASSERT_EQ(run_here({"export", "--link", "--out", run_.scratch / "out"}).code, 0);
  EXPECT_TRUE(fs::is_symlink(run_.scratch / "out/model-00001-of-00002.safetensors"));
  EXPECT_FALSE(fs::is_symlink(run_.scratch / "out/model-00002-of-00002.safetensors"))
      << "runs come and go";
}

TEST_F(Export, FullDirectoryIsRefusedAndFailureLeavesNothing) {
  fs::create_directories(run_.scratch / "out");
  std::ofstream(run_.scratch / "out/mine") << "x";
  EXPECT_EQ(run_here({"export", "--out", run_.scratch / "out"}).code, 2);
  fs::remove_all(run_.scratch / "huggingface/modeling");
  EXPECT_NE(run_here({"export", "--out", run_.scratch / "new"}).code, 0);
  EXPECT_FALSE(fs::exists(run_.scratch / "new"));
  EXPECT_FALSE(fs::exists(run_.scratch / "new.partial"));
}

TEST_F(Export, AdapterIsTheStudentAlone) {
  ASSERT_EQ(run_here({"export", "--adapter", "--out", run_.scratch / "out"}).code, 0);
  EXPECT_TRUE(fs::exists(run_.scratch / "out/feature_maps.safetensors"));
  EXPECT_TRUE(fs::exists(run_.scratch / "out/hedgerow.json"));
  EXPECT_FALSE(fs::exists(run_.scratch / "out/config.json"));
  EXPECT_FALSE(fs::exists(run_.scratch / "out/provenance.json")) << "names files of the run";
}

// The student's own maps would be those before the finetune.
TEST_F(Export, AdapterCarriesTrainedMapsAndRefusesTrainedNorms) {
  const fs::path student = run_.layout.root() / SmallRun::student(), lora = run_.scratch / "lora";
  fs::create_directories(lora);
  std::ofstream(lora / "adapter_config.json") << "{}";
  storage::write_safetensors(lora / "adapter_model.safetensors", {});
  const std::string name = "model.layers.0.self_attn.feature_map_q.mlp.layer";
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> shape;
  {
    const storage::SafetensorsFile maps(student / "feature_maps.safetensors");
    const storage::TensorView& view = maps.tensors().at(name);
    shape = view.shape;
    bytes.assign(view.bytes.size(), std::byte{1});
    ASSERT_FALSE(std::ranges::equal(bytes, view.bytes));
  }
  const auto export_with = [&](const std::string& trained, const std::string& out) {
    storage::write_safetensors(lora / "trained_parameters.safetensors",
                               {{trained, {storage::DType::kF32, shape, bytes}}});
    return run_line({"export",
                     "--adapter",
                     "--model",
                     run_.scratch / "model",
                     "--student",
                     student,
                     "--lora",
                     lora,
                     "--out",
                     run_.scratch / out});
  };
  const Answer answer = export_with(name, "out");
  ASSERT_EQ(answer.code, 0) << answer.err;
  const storage::SafetensorsFile before(student / "feature_maps.safetensors");
  const storage::SafetensorsFile after(run_.scratch / "out/feature_maps.safetensors");
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& [tensor, view] : after.tensors()) {
    EXPECT_TRUE(std::ranges::equal(
        view.bytes,
        tensor == name ? std::span<const std::byte>(bytes) : before.tensors().at(tensor).bytes))
        << tensor;
  }
  const Answer refused = export_with("model.norm.weight", "other");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("norms were trained (model.norm.weight)"), std::string::npos)
      << refused.err;
  EXPECT_FALSE(fs::exists(run_.scratch / "other"));
}

TEST_F(Export, StageThatTheRunHasNotComeToIsNamed) {
  const Answer answer = run_here({"export", "--subject", "lora", "--out", run_.scratch / "out"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("finetune is not done"), std::string::npos) << answer.err;
  EXPECT_EQ(run_here({"export", "--subject", "teacher", "--out", run_.scratch / "out"}).code, 2);
}

TEST_F(Export, GenerateCarriesIdsFromTokenizerToWorkerAndBack) {
  std::ofstream(run_.scratch / "huggingface/text.py")
      << "while read -r line; do case $line in\n"
         "*encode*) echo '{\"ids\":[5,6]}' ;;\n"
         "*decode*7*) echo '{\"text\":\" went on\"}' ;;\n"
         "*) echo '{\"error\":\"no\"}' ;;\nesac; done\n";
  write_script("worker",
               "cat > " + (run_.scratch / "stdin").string() +
                   "; echo '{\"row\":1,\"ids\":[7]}'; echo '{\"row\":0,\"ids\":[7,7]}'\n");
  const Answer answer = run_here({"generate", "--prompt", "It", "--prompt", "She", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  ASSERT_EQ(answer.json.size(), 2U);
  EXPECT_EQ(answer.json[0]["prompt"], "It");
  EXPECT_EQ(answer.json[0]["ids"], nlohmann::json::array({7, 7})) << "rows may end in any order";
  EXPECT_EQ(answer.json[1]["text"], " went on");
  EXPECT_EQ(answer.json[1]["subject"], "transfer");
  EXPECT_EQ(read_json("stdin"), (nlohmann::json{{"prompts", {{5, 6}, {5, 6}}}}));
}

TEST_F(Export, GenerateWithoutAPromptGoesOnFromThoseOfTheRecipe) {
  EXPECT_NE(
      run_here({"generate"}).err.find("has no evaluate.prompts; say hedgerow generate --run "),
      std::string::npos);
  storage::Recipe recipe = storage::Recipe::load(run_.layout.recipe());
  recipe.evaluate = {.prompts = {"Once"}, .max_new_tokens = 3};
  std::ofstream(run_.layout.recipe()) << recipe.to_toml();
  std::ofstream(run_.scratch / "huggingface/text.py")
      << "while read -r line; do case $line in\n"
         "*encode*Once*) echo '{\"ids\":[5]}' ;;\n*) echo '{\"text\":\"\"}' ;;\nesac; done\n";
  write_script("worker",
               "echo \"$@\" > " + (run_.scratch / "arguments").string() +
                   "; echo '{\"row\":0,\"ids\":[7]}'\n");
  const Answer answer = run_here({"generate", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.json[0]["prompt"], "Once");
  EXPECT_NE(storage::read_text(run_.scratch / "arguments").find("--max-new-tokens 3 "),
            std::string::npos);
}

TEST_F(Export, EvaluateShowsTheWorkersResultAndItsError) {
  write_script("worker",
               "echo '{\"subject\":\"transfer\",\"compute_dtype\":\"fp32\",\"perplexity\":15.25,"
               "\"tokens_per_second\":100}'\n");
  const std::string tokens = run_.layout.recipe();  // any file: the worker is a script
  const Answer answer = run_here({"evaluate", "--tokens", tokens});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_NE(answer.out.find("perplexity 15.25 in fp32, 100 tokens/s"), std::string::npos)
      << answer.out;
  write_script("worker",
               "echo '{\"subject\":\"transfer\",\"perplexity\":15.25,\"beyond\":128,"
               "\"control\":{\"window_size\":64,\"num_sinks\":0},\"columns\":{"
               "\"control\":{\"perplexity\":14,\"beyond\":{\"perplexity\":13.5}},"
               "\"student\":{\"perplexity\":15.25,\"beyond\":{\"perplexity\":15}}}}'\n");
  const Answer behind = run_here({"evaluate", "--tokens", tokens});
  EXPECT_NE(behind.out.find("beyond 128"), std::string::npos) << behind.out;
  EXPECT_TRUE(
      behind.out.ends_with("more steps (transfer.max_steps) help most, then "
                           "attention.feature_dim\n"))
      << behind.out;
  write_script("worker", "echo 'hedgerow-worker: no such tokens file' >&2; exit 1\n");
  const Answer failed = run_here({"evaluate", "--tokens", tokens});
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(
      failed.err,
      "hedgerow evaluate: hedgerow-worker evaluate failed (exit code 1): no such tokens file\n");
  EXPECT_EQ(run_here({"evaluate", "--tokens", "no-such-tokens.h5"}).code, 2);
}

// The same subject in the same precision, whoever computes it and however it is named.
TEST_F(Export, EveryCommandTakesThePrecisionOfTheRunOrOfTheStudent) {
  storage::Recipe recipe = storage::Recipe::load(run_.layout.recipe());
  recipe.plan.compute_dtype = "bf16";
  std::ofstream(run_.layout.recipe()) << recipe.to_toml();
  std::ofstream(run_.scratch / "huggingface/text.py")
      << "while read -r line; do case $line in\n"
         "*encode*) echo '{\"ids\":[5]}' ;;\n*) echo '{\"text\":\"\"}' ;;\nesac; done\n";
  write_script("worker",
               "echo \"$@\" > " + (run_.scratch / "arguments").string() +
                   "; echo '{\"compute_dtype\":\"fp32\"}'; echo '{\"row\":0,\"ids\":[7]}'\n");
  const auto asks_for = [&](const std::string& dtype) {
    const std::string arguments = storage::read_text(run_.scratch / "arguments");
    EXPECT_NE(arguments.find("--compute-dtype " + dtype + "\n"), std::string::npos)
        << arguments << "in place of " << dtype;
  };
  const std::vector<std::string> generate{"generate", "--json", "--prompt", "It"};
  const Answer answer = run_here(generate);
  asks_for("bf16");
  EXPECT_EQ(answer.json.at(0)["compute_dtype"], "fp32") << "what the worker says";
  EXPECT_NE(run_here({"generate", "--prompt", "It"}).err.find("transfer in fp32"),
            std::string::npos);
  static_cast<void>(run_here({"evaluate", "--tokens", run_.layout.recipe()}));
  asks_for("bf16");
  ASSERT_EQ(run_here({"export", "--out", run_.scratch / "out"}).code, 0);
  EXPECT_EQ(read_json("out/config.json")["dtype"], "bfloat16");
  EXPECT_NE(storage::read_text(run_.scratch / "out/README.md").find("names, bf16, in which"),
            std::string::npos);

  const fs::path student = run_.scratch / "student";
  fs::create_directories(student);
  fs::copy_file(run_.layout.root() / SmallRun::student() / "feature_maps.safetensors",
                student / "feature_maps.safetensors");
  const auto generate_from_student = [&](const std::string& recorded) {
    std::ofstream(student / "hedgerow.json") << "{" << recorded << "}";
    FakeConsole console;
    console.variables = {{"HEDGEROW_HUGGINGFACE", (run_.scratch / "huggingface").string()},
                         {"HEDGEROW_PYTHON", "/bin/sh"},
                         {"HEDGEROW_WORKER", (run_.scratch / "worker").string()}};
    return run_line({"generate",
                     "--prompt",
                     "It",
                     "--model",
                     run_.scratch / "model",
                     "--student",
                     student.string()},
                    console)
        .code;
  };
  EXPECT_EQ(generate_from_student(R"("compute_dtype": "fp32")"), 0);
  asks_for("fp32");
  EXPECT_EQ(generate_from_student(""), 0);
  asks_for("auto");
  EXPECT_EQ(generate_from_student(R"("compute_dtype": 8)"), 2);
}

// Every look at the clock takes a second here, and the console is a pipe: a line every ten seconds.
TEST_F(Export, WorkThatTakesLongShowsHowFarItIs) {
  std::string lines;
  for (const char* phase : {"loading the model", "generating"}) {
    for (int i = 1; i <= 20; ++i) {
      lines += "echo '{\"event\":\"progress\",\"phase\":\"" + std::string(phase) +
               "\",\"progress\":" + std::to_string(i * 0.05) + "}'\n";
    }
  }
  std::ofstream(run_.scratch / "huggingface/text.py")
      << "while read -r line; do case $line in\n"
         "*encode*) echo '{\"ids\":[5]}' ;;\n*) echo '{\"text\":\"\"}' ;;\nesac; done\n";
  write_script("worker",
               "case \"$*\" in *--progress*) ;; *) exit 1 ;; esac\n" + lines +
                   "echo '{\"row\":0,\"ids\":[7],\"subject\":\"transfer\",\"perplexity\":2}'\n");
  const auto shows = [&](std::vector<std::string> arguments) {
    FakeConsole console;
    console.tick = std::chrono::seconds(1);
    arguments.push_back("--json");
    const Answer answer = run_here(std::move(arguments), console);
    EXPECT_EQ(answer.code, 0) << answer.err;
    EXPECT_EQ(answer.json.size(), 1U) << "progress is not the answer: " << answer.out;
    EXPECT_NE(answer.err.find("loading the model ["), std::string::npos) << answer.err;
    EXPECT_NE(answer.err.find("generating ["), std::string::npos) << answer.err;
    EXPECT_NE(answer.err.find("eta "), std::string::npos) << answer.err;
  };
  shows({"generate", "--prompt", "It"});
  shows({"evaluate", "--tokens", run_.layout.recipe()});
}

// The model card states them.
TEST_F(Export, ADamagedEvaluationIsRefusedByName) {
  const storage::RunLayout layout(run_.scratch / "evaluated");
  const std::string name = "evaluate/teacher.t1.json";
  fs::create_directories(layout.journal_directory());
  fs::create_directories(layout.root() / "evaluate");
  std::ofstream(layout.root() / name) << R"({"perplexity": 15.25})";
  Geometry geometry;
  geometry.num_layers = geometry.layers_per_block = geometry.num_shards = 1;
  geometry.evaluates = {Subject::kTeacher};
  const TaskId task = TaskId::evaluate(Subject::kTeacher);
  storage::Journal journal = storage::Journal::start_term(layout, {});
  const storage::FileRecord file{
      name, fs::file_size(layout.root() / name), storage::hash_file(layout.root() / name)};
  for (const Event& event : {Event(RunStarted{geometry, "test"}),
                             Event(Granted{task, 1, "w", 1, "cpu"}),
                             Event(TaskDone{1, {file}, nlohmann::json::object()})})
    journal.append(event_to_json(event));
  journal.commit();
  EXPECT_NO_THROW(verify_evaluations(layout.root()));
  std::ofstream(layout.root() / name) << R"({"perplexity": 11.25})";
  try {
    verify_evaluations(layout.root());
    ADD_FAILURE() << "the damaged file was taken";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
  }
}

TEST_F(Export, AnExportThatIsInterruptedLeavesNothing) {
  run_.append(
      {Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"}, TaskDone{5, {}, nlohmann::json::object()}});
  const std::string adapter = storage::RunLayout::adapter_directory(5);
  fs::create_directories(run_.layout.root() / adapter);
  write_script("worker", "kill -INT $PPID; sleep 5\n");
  EXPECT_EQ(run_here({"export", "--out", run_.scratch / "out"}).code, 4);
  EXPECT_FALSE(fs::exists(run_.scratch / "out"));
  EXPECT_FALSE(fs::exists(run_.scratch / "out.partial"));
}

// Its files are copied like any other, and a copy that ends early is no adapter.
TEST_F(Export, AnAdapterThatIsInterruptedLeavesNothing) {
  ExportRequest request;
  request.model.student = run_.layout.root() / SmallRun::student();
  request.out = run_.scratch / "out";
  {
    const InterruptScope interrupts;
    std::raise(SIGINT);
    EXPECT_FALSE(export_adapter(request));
  }
  EXPECT_FALSE(fs::exists(run_.scratch / "out"));
  EXPECT_FALSE(fs::exists(run_.scratch / "out.partial"));
  EXPECT_TRUE(export_adapter(request));
}

TEST_F(Export, ModelMustBeSaidOnceAndOnlyOnce) {
  EXPECT_EQ(run_line({"generate", "--prompt", "x"}).code, 2);
  EXPECT_EQ(run_here({"generate", "--prompt", "x", "--model", "m"}).code, 2);
  EXPECT_EQ(run_line({"generate", "--prompt", "x", "--model", "m", "--lora", "l"}).code, 2);
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
