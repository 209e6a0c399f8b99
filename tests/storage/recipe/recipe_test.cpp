#include "storage/recipe/recipe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipe_refusal.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Recipe, AbsentKeysKeepTheDefaultsAndDefaultsAreOurOwnAttention) {
  Recipe expected;
  expected.model.path = "teacher";
  for (DataSection* data :
       {&expected.data_transfer, &expected.data_finetune, &expected.data_evaluate}) {
    data->sources = {DataSource{.path = "corpus.txt"}};
  }
  expected.attention.recall_cache = 32;  // half of 64 features
  EXPECT_EQ(minimal(), expected);
  EXPECT_EQ(expected.attention.start, FeatureMapStart::kOrthogonal);
  EXPECT_EQ(expected.attention.window, WindowLayout::kTerraced);
}

TEST(Recipe, WrittenAndReadAgainIsTheSameInEveryField) {
  // Each value differs from its default, so that a field which is not written or not read shows.
  Recipe recipe = minimal();
  recipe.seed = 9'000'000'000'000'000'000U;
  recipe.model.path = "a \"quoted\"\\path\twith\nnewline\x01";
  recipe.data_finetune = {.sources = {{.path = "a.jsonl",
                                       .format = "jsonl",
                                       .template_ = "{q}\n{a}",
                                       .label_mask = "answer"},
                                      {.path = "b.json", .format = "alpaca", .shots = 5}},
                          .seq_len = 77,
                          .validation_sequences = 3,
                          .split = "sequences",
                          .max_sequences = 99,
                          .add_bos = AddBos::kYes,
                          .eos_token_id = 2};
  recipe.attention = {};
  recipe.attention.feature_map = FeatureMapKind::kPositiveRandom;
  recipe.attention.negation = false;
  recipe.attention.feature_dim = 48;
  recipe.attention.bias = false;
  recipe.attention.start = FeatureMapStart::kGaussian;
  recipe.attention.key_maps = KeyMaps::kQueryHead;
  recipe.attention.window = WindowLayout::kSliding;
  recipe.attention.window_size = 17;
  recipe.attention.num_sinks = 3;
  recipe.attention.window_factor = 0.1 + 0.2;
  recipe.attention.train_window_factor = false;
  recipe.attention.train_feature_map = false;
  recipe.plan = {.layers_per_block = 7,
                 .sequences_per_forward = 2,
                 .shard_mib = 8,
                 .compute_dtype = "fp32",
                 .shard_dtype = "fp16",
                 .keep_boundaries = "every:3",
                 .device = "cpu"};
  recipe.transfer = {.learning_rate = 0.02,
                     .max_steps = 61,
                     .sequences_per_step = 6,
                     .mse_factor = 1.0,
                     .xent_factor = 1e-30,
                     .weight_decay = 0.5,
                     .gradient_clip = 0.0,
                     .shuffle = true,
                     .validate_every = 11,
                     .validation_sequences = 2,
                     .schedule = "plateau",
                     .plateau_factor = 0.5,
                     .plateau_patience = 11,
                     .min_learning_rate = 1e-6,
                     .early_stop_patience = 3,
                     .checkpoint_every = 12,
                     .retries_with_new_seed = 1,
                     .redraw_every = 13,
                     .tied_maps = true,
                     .softmax_layers = {.layers = {0, 29}}};
  recipe.finetune = {.enabled = false,
                     .rank = 16,
                     .alpha = 1e300 / 1e297,
                     .target_modules = {"q_proj"},
                     .learning_rate = 1e-5,
                     .weight_decay = 0.1,
                     .gradient_clip = 0.0,
                     .max_steps = 41,
                     .sequences_per_step = 8,
                     .sequences_per_micro_batch = 2,
                     .checkpoint_every = 11,
                     .validate_every = 13,
                     .schedule = "linear",
                     .warmup_steps = 7,
                     .plateau_factor = 0.25,
                     .plateau_patience = 12,
                     .min_learning_rate = 1e-7,
                     .early_stop_patience = 4,
                     .ranks = 4,
                     .threads = 3,
                     .exchange = "mpi",
                     .launch = "elsewhere"};
  recipe.texts = {
      {.name = "wiki-2", .source = {.path = "w \"2\".txt"}},
      {.name = "own", .source = {.path = "o.json", .format = "alpaca"}, .in_domain = true}};
  recipe.evaluate = {.max_sequences = 5, .prompts = {"caf\xc3\xa9", ""}, .max_new_tokens = 41};
  recipe.workers = {.local = 3,
                    .threads = 4,
                    .orphan_timeout_s = 601,
                    .lease_s = 31,
                    .hang_timeout_s = 121,
                    .file_patience_s = 91,
                    .bind = "::1",
                    .advertise = "node7.cluster",
                    .port = 7400};
  recipe.made_by = {.version = "1.2.3", .git_hash = "9f86d081884c"};
  // Maps that train are not drawn again, and with both of these off nothing would train.
  for (bool* kept : {&recipe.finetune.enabled, &recipe.attention.train_window_factor}) {
    *kept = true;
    const std::string toml = recipe.to_toml();
    EXPECT_EQ(Recipe::parse(toml, "run.toml"), recipe) << toml;
    *kept = false;
  }
}

TEST(Recipe, AMisspeltKeyIsNamedWithItsLineAndTheLikelyKey) {
  EXPECT_EQ(refusal_of("[transfer]\nlearning_rat = 0.1\n"),
            "recipe.toml:7: transfer.learning_rat is not a known key; did you mean "
            "transfer.learning_rate?");
  EXPECT_EQ(refusal_of("[transfr]\nmax_steps = 1\n"),
            "recipe.toml:6: transfr is not a known key; did you mean transfer?");
}

TEST(Recipe, AKeyInTheWrongSectionIsSentToItsOwn) {
  EXPECT_EQ(refusal_of("[transfer]\nwindow_size = 64\n"),
            "recipe.toml:7: transfer.window_size is not a known key; did you mean "
            "attention.window_size?");
}

TEST(Recipe, AStrangeKeyListsWhatTheSectionHas) {
  EXPECT_THAT(refusal_of("[workers]\nzzz = 64\n"),
              HasSubstr("known keys there: local, threads, orphan_timeout_s, lease_s, "
                        "hang_timeout_s, file_patience_s, bind"));
  EXPECT_THAT(refusal_of("[zzz]\nzzz = 64\n"),
              HasSubstr("known keys there: seed, model, data, attention, plan, transfer,"));
}

TEST(Recipe, KeysInsideASourceAreCheckedToo) {
  EXPECT_THAT(
      refusal("[model]\npath = \"t\"\n[data.transfer]\nsources = [{ path = \"a\", fromat = "
              "\"text\" }]\n"),
      HasSubstr("recipe.toml:4: data.transfer.sources[0].fromat is not a known key; did you mean "
                "data.transfer.sources[0].format?"));
}

TEST(Recipe, AllLayersMayKeepTheirSoftmax) {
  Recipe recipe = minimal();
  recipe.transfer.softmax_layers.all = true;
  EXPECT_THAT(recipe.to_toml(), HasSubstr("softmax_layers = \"all\""));
  EXPECT_EQ(Recipe::parse(recipe.to_toml(), "r").transfer, recipe.transfer);
  recipe.transfer.softmax_layers = {.uniform = 4};
  EXPECT_THAT(recipe.to_toml(), HasSubstr("softmax_layers = \"uniform:4\""));
  EXPECT_EQ(Recipe::parse(recipe.to_toml(), "r").transfer, recipe.transfer);
  for (const char* wrong : {"uniform:", "uniform:0", "uniform:4x"})
    EXPECT_THAT(refusal_of("[transfer]\nsoftmax_layers = \"" + std::string(wrong) + "\"\n"),
                HasSubstr("expected uniform:N, N layers from 1 on"));
}

TEST(Recipe, ShotsAndGeneratedRecordsAreRefusedWhereTheyMeanNothing) {
  Recipe recipe = minimal();
  const auto problem = [&recipe] {
    try {
      recipe.validate("r");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  auto& sources = recipe.data_transfer.sources;
  sources = {{.path = "a.txt", .shots = 2}};
  EXPECT_THAT(problem(), HasSubstr("sources[0].shots = 2: format \"text\" has no records"));
  sources = {{.path = "a.json", .format = "records", .shots = 2}};
  EXPECT_EQ(problem(), "");
  sources.push_back({.path = "keys.json", .format = "passkey"});
  EXPECT_THAT(problem(), HasSubstr("give each one a weight"));
  for (DataSource& source : sources) source.weight = 1;
  EXPECT_EQ(problem(), "");
}

TEST(Recipe, AWrongTypeNamesKeyLineAndBothTypes) {
  EXPECT_EQ(refusal_of("[transfer]\nmax_steps = \"60\"\n"),
            "recipe.toml:7: transfer.max_steps expected an integer, found a string");
  EXPECT_THAT(refusal_of("[transfer]\nmax_steps = 60.0\n"),
              HasSubstr("found a number with a point"));
  EXPECT_THAT(refusal_of("[transfer]\nshuffle = 1\n"),
              HasSubstr("expected true or false, found an integer"));
  EXPECT_THAT(refusal_of("[transfer]\nsoftmax_layers = 3\n"),
              HasSubstr("expected a list of layers, \"all\" or \"uniform:N\", found an integer"));
  EXPECT_THAT(refusal_of("[transfer]\nsoftmax_layers = [\"a\"]\n"),
              HasSubstr("expected an integer, found a string"));
  EXPECT_THAT(refusal_of("[evaluate]\nprompts = [1]\n"),
              HasSubstr("expected a string, found an integer"));
  EXPECT_THAT(refusal("plan = 3\n" + std::string(kMinimal)),
              HasSubstr("recipe.toml:1: plan expected a table"));
  EXPECT_THAT(refusal("data = 3\n[model]\npath = \"t\"\n"),
              HasSubstr("recipe.toml:1: data expected a table"));
  EXPECT_THAT(refusal("[model]\npath = \"t\"\n[data.transfer]\nsources = [\"a\"]\n"),
              HasSubstr("expected a table, as { path"));
}

TEST(Recipe, AnIntegerIsANumber) {
  EXPECT_EQ(Recipe::parse(std::string(kMinimal) + "[transfer]\nmse_factor = 5\n", "r")
                .transfer.mse_factor,
            5.0);
}

TEST(Recipe, AValueOutOfRangeNamesKeyLineAndRange) {
  EXPECT_EQ(refusal_of("[finetune]\nmax_steps = 0\n"),
            "recipe.toml:7: finetune.max_steps = 0: expected at least 1 and at most 1000000000");
  EXPECT_THAT(refusal_of("[transfer]\nlearning_rate = 0.0\n"), HasSubstr("expected more than 0"));
  EXPECT_THAT(refusal_of("[transfer]\nlearning_rate = nan\n"),
              HasSubstr("recipe.toml:7: transfer.learning_rate = nan"));
  EXPECT_THAT(refusal_of("[plan]\nshard_mib = 99999999999\n"),
              HasSubstr("recipe.toml:7: plan.shard_mib"));
  EXPECT_THAT(
      refusal_of("[plan]\ncompute_dtype = \"int8\"\n"),
      HasSubstr("recipe.toml:7: plan.compute_dtype = \"int8\": expected one of auto, bf16, fp32"));
  EXPECT_THAT(
      refusal_of("[attention]\nwindow = \"slidng\"\n"),
      HasSubstr(
          "recipe.toml:7: attention.window = \"slidng\": expected one of none, sliding, terraced"));
  EXPECT_THAT(refusal_of("[finetune]\ntarget_modules = [\"qproj\"]\n"),
              HasSubstr("expected one of q_proj, k_proj"));
  EXPECT_THAT(refusal("seed = -1\n" + std::string(kMinimal)),
              HasSubstr("recipe.toml:1: seed = -1"));
}

TEST(Recipe, RulesBetweenFieldsNameTheLineOfTheFieldToChange) {
  EXPECT_EQ(refusal_of("[transfer]\nsequences_per_step = 6\n"),
            "recipe.toml:7: transfer.sequences_per_step = 6 must be a multiple of "
            "plan.sequences_per_forward = 4");
  EXPECT_EQ(refusal_of("[plan]\ndevice = \"cpu\"\n[finetune]\nexchange = \"nccl\"\n"),
            "recipe.toml:9: finetune.exchange = \"nccl\" needs GPUs, and plan.device = \"cpu\"; "
            "set it to \"auto\"");
  EXPECT_THAT(refusal_of("[finetune]\nobjective = \"mixed\"\nce_weight = 0\nkl_weight = 0.0\n"),
              HasSubstr("finetune.ce_weight and finetune.kl_weight are both 0"));
  EXPECT_THAT(refusal_of("[finetune]\nobjective = \"kd\"\n"),
              HasSubstr("expected one of ce, kl, mixed"));
  EXPECT_EQ(refusal_of("[finetune]\nsequences_per_step = 6\nranks = 4\n"), "accepted");
  EXPECT_EQ(refusal_of("[finetune]\nsequences_per_step = 6\nsequences_per_micro_batch = 4\n"),
            "recipe.toml:7: finetune.sequences_per_step = 6 must be a multiple of "
            "finetune.sequences_per_micro_batch = 4");
  EXPECT_EQ(refusal_of("[finetune]\nranks = 5\n"), "accepted");
  EXPECT_EQ(refusal_of("[finetune]\nranks = 4\nmesh = \"2x2\"\n"), "accepted");
  EXPECT_EQ(refusal_of("[finetune]\nranks = 5\nmesh = \"5x1\"\n"),
            "recipe.toml:8: finetune.mesh = \"5x1\" has 5 pipelines, but a step has 4 "
            "micro-batches (sequences_per_step / sequences_per_micro_batch) and each pipeline "
            "needs one; use more stages, or raise finetune.sequences_per_step");
  EXPECT_EQ(refusal_of("[finetune]\nranks = 3\nmesh = \"2x2\"\n"),
            "recipe.toml:8: finetune.mesh = \"2x2\" has 4 ranks, but finetune.ranks = 3; make them "
            "equal, or set it to \"auto\"");
  EXPECT_THAT(refusal_of("[finetune]\nmesh = \"two\"\n"),
              HasSubstr("finetune.mesh = \"two\": expected \"auto\", or pipelines x stages"));
  EXPECT_THAT(refusal_of("[plan]\nkeep_boundaries = \"every:0\"\n"),
              HasSubstr("every:N with N at least 1"));
  EXPECT_THAT(refusal_of("[plan]\nkeep_boundaries = \"some\"\n"),
              HasSubstr("recipe.toml:7: plan.keep_boundaries"));
  EXPECT_THAT(refusal_of("[attention]\nfeature_map = \"relu\"\n"),
              HasSubstr("attention.negation = true: only the hedgehog"));
  EXPECT_EQ(refusal_of("[attention]\norder = 2\n[transfer]\nlinear_factor = 0\n"), "accepted");
  EXPECT_EQ(refusal_of("[attention]\norder = 3\n"),
            "recipe.toml:7: attention.order is of an earlier build, and this one has only its 2; "
            "leave it out, or finish this run with the build that began it");
  EXPECT_THAT(
      refusal_of("[transfer]\nredraw_every = 5\n"),
      HasSubstr("recipe.toml:7: transfer.redraw_every = 5: only positive_random that is not "
                "trained is drawn again"));
  EXPECT_THAT(refusal_of("[transfer]\ntied_maps = true\n"),
              HasSubstr("recipe.toml:7: transfer.tied_maps = true: with attention.key_maps"));
  EXPECT_THAT(refusal_of("[attention]\nkey_maps = \"query_head\"\n[transfer]\ntied_maps = true\n"
                         "[finetune]\ntrainable = [\"lora\", \"maps\"]\n"),
              HasSubstr("recipe.toml:9: transfer.tied_maps = true: the last stage would train"));
  EXPECT_THAT(refusal_of("[attention]\nfeature_dim = 63\n"),
              HasSubstr("recipe.toml:7: attention.feature_dim = 63: must be even"));
  EXPECT_THAT(refusal_of("[transfer]\nvalidation_sequences = 9\n"),
              HasSubstr("data.transfer.validation_sequences = 8"));
  EXPECT_THAT(refusal_of("[transfer]\nsoftmax_layers = [3, 3]\n"), HasSubstr("each layer once"));
  for (const char* bind : {"", "tcp://a", "[::1]", "a b", "host*"}) {
    EXPECT_THAT(refusal_of("[workers]\nbind = \"" + std::string(bind) + "\"\n"),
                HasSubstr("recipe.toml:7: workers.bind = \"" + std::string(bind)));
  }
  EXPECT_THAT(refusal_of("[workers]\nadvertise = \"*\"\n"),
              HasSubstr("recipe.toml:7: workers.advertise = \"*\": expected a host's name"));
}

TEST(Recipe, WhatTheFinetuneTrainsMustBeThereToTrain) {
  const auto trainable = [](const std::string& list, const std::string& attention = "") {
    return refusal_of("[finetune]\ntrainable = " + list + "\n" + attention);
  };
  EXPECT_EQ(trainable("[]"),
            "recipe.toml:7: finetune.trainable is empty; set finetune.enabled = false instead");
  EXPECT_THAT(trainable("[\"map\"]"),
              HasSubstr("expected one of lora, maps, window_factors, norms"));
  EXPECT_THAT(trainable("[\"maps\", \"maps\"]"),
              HasSubstr("recipe.toml:7: finetune.trainable names maps twice"));
  EXPECT_THAT(trainable("[\"maps\"]", "[attention]\ntrain_feature_map = false\n"),
              HasSubstr("names maps, but attention.train_feature_map = false"));
  EXPECT_THAT(trainable("[\"maps\"]",
                        "[attention]\nfeature_map = \"taylor\"\nnegation = false\n"
                        "bias = false\norder = 2\n"),
              HasSubstr("recipe.toml:7: finetune.trainable names maps, but the feature map"));
  EXPECT_THAT(trainable("[\"window_factors\"]", "[attention]\nwindow = \"none\"\n"),
              HasSubstr("recipe.toml:7: finetune.trainable names window_factors, but "
                        "attention.window = none"));
  EXPECT_THAT(trainable("[\"window_factors\"]", "[attention]\ntrain_window_factor = false\n"),
              HasSubstr("attention.train_window_factor = false"));
  const Recipe all = Recipe::parse(
      std::string(kMinimal) +
          "[finetune]\ntrainable = [\"lora\", \"maps\", \"window_factors\", \"norms\"]\n"
          "target_modules = [\"gate_proj\", \"up_proj\", \"down_proj\"]\n",
      "r");
  EXPECT_TRUE(all.finetune.trains("norms"));
}

TEST(Recipe, NoTransferStepsNeedAFinetuneThatTrainsTheMaps) {
  EXPECT_EQ(refusal_of("[transfer]\nmax_steps = 0\n"),
            "recipe.toml:7: transfer.max_steps = 0 leaves the maps untrained; add \"maps\" to "
            "finetune.trainable (and set finetune.enabled = true), or give the transfer steps");
  EXPECT_THAT(refusal_of("[transfer]\nmax_steps = 0\n[finetune]\nenabled = false\n"
                         "trainable = [\"maps\"]\n"),
              HasSubstr("transfer.max_steps = 0 leaves the maps untrained"));
  EXPECT_EQ(Recipe::parse(std::string(kMinimal) +
                              "[transfer]\nmax_steps = 0\n[finetune]\ntrainable = [\"maps\"]\n",
                          "r")
                .transfer.max_steps,
            0);
}

// Catches: a run whose error is rounding from the first step on, and that nobody warns of.
TEST(Recipe, SequencesThatTheWindowCoversAreRefusedWithBothFields) {
  const auto with = [](const std::string& transfer, const std::string& attention) {
    return std::string(kMinimal) + transfer + "\n[attention]\n" + attention;
  };
  const std::string sliding = "window = \"sliding\"\nwindow_size = 64\n";
  EXPECT_EQ(
      refusal(with("seq_len = 128", "")),
      "recipe.toml:6: data.transfer.seq_len = 128: with attention.window_size = 64 a terraced "
      "window keeps all keys of up to 128 tokens under softmax, so linear attention would "
      "learn nothing; use at least 129 (several times as many teach it more), or a smaller "
      "attention.window_size");
  EXPECT_THAT(refusal(with("seq_len = 68", sliding)),
              HasSubstr("attention.window_size = 64 and attention.num_sinks = 4 a sliding window "
                        "keeps all keys of up to 68 tokens under softmax"));
  EXPECT_EQ(Recipe::parse(with("seq_len = 69", sliding), "r").data_transfer.seq_len, 69);
  const std::string none = sliding + "num_sinks = 0\n";
  EXPECT_THAT(refusal(with("seq_len = 64", none)), HasSubstr("use at least 65"));
  EXPECT_EQ(Recipe::parse(with("seq_len = 65", none), "r").data_transfer.seq_len, 65);
  EXPECT_EQ(Recipe::parse(with("seq_len = 2", "window = \"none\"\n"), "r").data_transfer.seq_len,
            2);
  const std::string finetune = "seq_len = 129\n[data.finetune]\nseq_len = 128";
  EXPECT_THAT(refusal(with(finetune, "")),
              HasSubstr("recipe.toml:8: data.finetune.seq_len = 128: with attention.window_size"));
  EXPECT_NO_THROW(
      static_cast<void>(Recipe::parse(with(finetune, "[finetune]\nenabled = false\n"), "r")));
  EXPECT_NO_THROW(static_cast<void>(
      Recipe::parse(with("seq_len = 129\n[data.evaluate]\nseq_len = 64", ""), "r")))
      << "the plan warns of it";
}

TEST(Recipe, SinksThatTheWindowCannotHoldAreRefusedAndThoseLeftOutFitIt) {
  const auto text = [](const std::string& attention) {
    return std::string(kMinimal) + "[attention]\n" + attention;
  };
  const auto sinks = [&](const std::string& attention) {
    return Recipe::parse(text(attention), "r").attention.num_sinks;
  };
  EXPECT_EQ(sinks(""), 4);
  EXPECT_EQ(sinks("window_size = 3\n"), 3);
  EXPECT_EQ(sinks("window = \"none\"\n"), 0);
  EXPECT_EQ(sinks("window_size = 16\nnum_sinks = 16\n"), 16);
  EXPECT_EQ(refusal(text("window_size = 3\nnum_sinks = 4\n")),
            "recipe.toml:8: attention.num_sinks = 4: more than attention.window_size = 3; use at "
            "most that");
  EXPECT_EQ(refusal(text("window = \"none\"\nnum_sinks = 1\n")),
            "recipe.toml:8: attention.num_sinks = 1: sinks belong to a window, and "
            "attention.window is none; use 0");
  EXPECT_THAT(refusal(text("num_sinks = 17\n")),
              HasSubstr("recipe.toml:7: attention.num_sinks = 17: expected at least 0 and at most "
                        "16"));
  EXPECT_THAT(refusal(text("num_sinks = \"4\"\n")),
              HasSubstr("attention.num_sinks expected an integer"));
}

TEST(Recipe, KeyMapsOfKvHeadsAreTheDefaultButWhereKeysHaveTheMapOfTheirQueries) {
  const auto text = [](const std::string& attention) {
    return std::string(kMinimal) + "[attention]\n" + attention;
  };
  const std::string random =
      "feature_map = \"positive_random\"\nnegation = false\nbias = false\n"
      "start = \"gaussian\"\n";
  EXPECT_EQ(Recipe::parse(text(""), "r").attention.key_maps, KeyMaps::kKvHead);
  EXPECT_EQ(Recipe::parse(text(random), "r").attention.key_maps, KeyMaps::kQueryHead);
  EXPECT_THAT(refusal(text(random + "key_maps = \"kv_head\"\n")),
              HasSubstr("recipe.toml:11: attention.key_maps = kv_head: positive_random maps"));
  EXPECT_EQ(refusal(text("key_maps = \"kvhead\"\n")),
            "recipe.toml:7: attention.key_maps = \"kvhead\": expected one of kv_head, query_head");
}

// Catches: a run of an earlier build that goes on with the sinks of this one.
TEST(Recipe, ARecipeThatAnEarlierBuildResolvedHasNeitherSinksNorACacheNorSharedKeyMaps) {
  const std::string earlier = std::string(kMinimal) + "[made_by]\nversion = \"1.0.0\"\n";
  const Recipe recipe = Recipe::parse(earlier, "run.toml");
  EXPECT_EQ(recipe.attention.num_sinks, 0);
  EXPECT_EQ(recipe.attention.key_maps, KeyMaps::kQueryHead);
  EXPECT_TRUE(recipe.finetune.repeat_captured);
  EXPECT_EQ(Recipe::parse(recipe.to_toml(), "run.toml"), recipe);
  EXPECT_THAT(difference(recipe, minimal()).unsafe,
              ElementsAre("attention.num_sinks: 0 -> 4",
                          "attention.recall_cache: 0 -> 32",
                          "attention.key_maps: \"query_head\" -> \"kv_head\"",
                          "finetune.repeat_captured: true -> false"));
}

TEST(Recipe, ACacheThatIsLeftOutHasHalfOfTheFeaturesAsFarAsTheWindowGoes) {
  const auto cache = [](const std::string& attention) {
    return Recipe::parse(std::string(kMinimal) + "[attention]\n" + attention, "r")
        .attention.recall_cache;
  };
  EXPECT_EQ(cache("feature_dim = 128\n"), 64);
  EXPECT_EQ(cache("feature_dim = 128\nwindow_size = 48\n"), 48);
  EXPECT_EQ(cache("feature_dim = 128\nrecall_cache = 0\n"), 0);
  EXPECT_EQ(cache("window = \"none\"\n"), 0);
  EXPECT_EQ(cache("feature_map = \"identity\"\nnegation = false\nbias = false\n"), 0);
}

TEST(Recipe, VariantsAreWrittenAsWhatTheyHaveOtherwiseAndReadAgain) {
  Recipe recipe = minimal();
  recipe.variants = {
      {.name = "same", .attention = recipe.attention, .transfer = recipe.transfer},
      {.name = "wide_2", .seeds = 3, .attention = recipe.attention, .transfer = recipe.transfer}};
  recipe.variants[1].attention.feature_dim = 128;
  recipe.variants[1].transfer.schedule = "cosine";
  const std::string text = recipe.to_toml();
  EXPECT_THAT(
      text,
      HasSubstr("[[variants]]\nname = \"same\"\n\n[[variants]]\nname = \"wide_2\"\n"
                "seeds = 3\nattention.feature_dim = 128\ntransfer.schedule = \"cosine\"\n"));
  EXPECT_EQ(Recipe::parse(text, "r"), recipe);
  EXPECT_EQ(recipe.num_students(), 5);
  EXPECT_EQ(recipe.of(recipe.variants[1], 2).seed, recipe.seed + 2);
  EXPECT_EQ(recipe.of(recipe.variants[1]).attention.feature_dim, 128);
  EXPECT_TRUE(recipe.of(recipe.variants[1]).variants.empty());
  Recipe other = recipe;
  other.variants[1].attention.feature_dim = 64;
  EXPECT_EQ(difference(recipe, other).unsafe.size(), 1U);
}

TEST(Recipe, ARunInWhichNothingTrainsIsRefused) {
  const auto with = [](const std::string& attention) {
    return std::string(kMinimal) + "[attention]\n" + attention + "[finetune]\nenabled = false\n";
  };
  const std::string kept = "train_feature_map = false\n";
  EXPECT_THAT(refusal(with(kept + "train_window_factor = false\n")),
              HasSubstr("finetune.enabled = false: nothing of this run would learn"));
  EXPECT_THAT(refusal(with(kept + "window = \"none\"\n")), HasSubstr("nothing of this run"));
  EXPECT_NO_THROW(static_cast<void>(Recipe::parse(with(kept), "r")))
      << "the window's factor trains";
}

TEST(Recipe, AllProblemsAreReportedAtOnce) {
  const std::string text = refusal("seed = -1\nmodle = 1\n[transfer]\nmax_steps = -1\n");
  EXPECT_THAT(text, HasSubstr("recipe.toml:1: seed"));
  EXPECT_THAT(text, HasSubstr("recipe.toml:2: modle is not a known key; did you mean model?"));
  EXPECT_THAT(text, HasSubstr("recipe.toml:4: transfer.max_steps"));
}

TEST(Recipe, WithoutModelOrTextItSaysWhatToName) {
  const std::string text = refusal("");
  EXPECT_THAT(text, HasSubstr("recipe.toml: model.path is not set"));
  EXPECT_THAT(text, HasSubstr("recipe.toml: data.transfer.sources is empty"));
}

TEST(Recipe, AFaultOfATextThatAllStagesReadIsSaidOnce) {
  const std::string text = "[model]\npath = \"t\"\n[data.transfer]\n";
  const std::string wrong = "sources = [{ path = \"a.txt\", template = \"{a}\" }]\n";
  EXPECT_THAT(refusal(text + wrong),
              HasSubstr("data.transfer.sources[0].template is for format = \"jsonl\""));
  EXPECT_THAT(refusal(text + wrong), Not(HasSubstr("data.evaluate.sources")));
  EXPECT_THAT(refusal(text + "sources = [{ path = \"b.txt\" }]\n[data.evaluate]\n" + wrong),
              HasSubstr("data.evaluate.sources[0].template is for format"));
}

TEST(Recipe, JsonlWithoutATemplateTakesTheTextOfARecord) {
  const Recipe recipe = Recipe::parse(
      "[model]\npath = \"t\"\n[data.transfer]\n"
      "sources = [{ path = \"a.jsonl\", format = \"jsonl\" }]\n",
      "recipe.toml");
  EXPECT_EQ(recipe.data_evaluate.sources.at(0).template_, "{text}");
}

TEST(Recipe, FinetuneAndEvaluateDataTakeWhatTheyLeaveOutFromTransfer) {
  const Recipe recipe = Recipe::parse(R"(
[model]
path = "t"
[data.transfer]
seq_len = 512
eos_token_id = 2
sources = [{ path = "a" }]
[data.finetune]
seq_len = 256
)",
                                      "r");
  EXPECT_EQ(recipe.data_finetune.seq_len, 256);
  EXPECT_EQ(recipe.data_finetune.eos_token_id, 2);
  EXPECT_EQ(recipe.data_finetune.sources, recipe.data_transfer.sources);
  EXPECT_EQ(recipe.data_evaluate, recipe.data_transfer);
}

TEST(Recipe, ValidateChecksRangesOfARecipeThatCameFromNoFile) {
  Recipe recipe = minimal();
  EXPECT_NO_THROW(recipe.validate("made by hand"));
  recipe.plan.sequences_per_forward =
      0;  // also a division by zero in the rules between fields, were it not caught
  try {
    recipe.validate("made by hand");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("made by hand: plan.sequences_per_forward = 0"));
  }
}

TEST(Recipe, LoadMakesPathsAbsoluteFromTheRecipesFolder) {
  const tests::TemporaryDirectory directory;
  write_atomically(
      directory / "r.toml",
      "[model]\npath = \"./teacher\"\n[data.transfer]\nsources = [{ path = \"../corpus.txt\" }]\n"
      "[data.evaluate]\nsources = [{ path = \"/abs.txt\" }]\n");
  const Recipe recipe = Recipe::load(directory / "r.toml");
  EXPECT_EQ(recipe.model.path, directory / "teacher");
  EXPECT_EQ(recipe.data_transfer.sources.at(0).path, directory.path().parent_path() / "corpus.txt");
  EXPECT_EQ(recipe.data_evaluate.sources.at(0).path, "/abs.txt");
  write_atomically(directory / "r.toml", kMinimal);
  EXPECT_EQ(Recipe::load(directory / "r.toml").model.path, directory / "teacher");
}

TEST(Recipe, AModelPathWithoutADotIsTheRecipesFoldersOrElseTheCaches) {
  const tests::TemporaryDirectory directory;
  const auto path_of = [&](const std::string& model) {
    write_atomically(directory / "r.toml",
                     "[model]\npath = \"" + model +
                         "\"\n[data.transfer]\nsources = [{ path = \"corpus.txt\" }]\n");
    return Recipe::load(directory / "r.toml").model.path;
  };
  EXPECT_EQ(path_of("models/x"), "models/x") << "nothing there: org/name of the cache";
  EXPECT_EQ(path_of("my/models/x"), directory / "my/models/x") << "no cache has such a name";
  std::filesystem::create_directories(directory / "models" / "x");
  EXPECT_EQ(path_of("models/x"), directory / "models/x");
}

TEST(Recipe, AModelFolderOfTheWorkingDirectoryIsRefusedNotTaken) {
  const tests::TemporaryDirectory directory;
  const tests::TemporaryDirectory working;
  std::filesystem::create_directories(working / "models" / "x");
  write_atomically(
      directory / "r.toml",
      "[model]\npath = \"models/x\"\n[data.transfer]\nsources = [{ path = \"c.txt\" }]\n");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(working.path());
  try {
    (void)Recipe::load(directory / "r.toml");
    ADD_FAILURE() << "what a recipe means depends on where the command was given";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr((working / "models/x").string()));
    EXPECT_THAT(error.what(), HasSubstr(directory.path().string()));
  }
  std::filesystem::current_path(before);
}

TEST(Recipe, OneTextInTwoStagesIsHeldOutAlikeOrRefused) {
  const auto stages = [](const std::string& transfer, const std::string& evaluate) {
    return refusal("[model]\npath = \"t\"\n[data.transfer]\n" + transfer + "\n[data.evaluate]\n" +
                   evaluate + "\n");
  };
  const std::string one = "sources = [{ path = \"a.txt\" }]";
  const std::string two = "sources = [{ path = \"b.txt\" }, { path = \"a.txt\" }]";
  EXPECT_EQ(stages(one, ""), "accepted");
  EXPECT_EQ(stages(two, "seq_len = 64\nadd_bos = true"), "accepted");
  EXPECT_EQ(stages(one, "sources = [{ path = \"c.txt\" }]\nvalidation_sequences = 0"), "accepted");
  EXPECT_THAT(stages(two, one), HasSubstr("data.evaluate.sources names a.txt, and so does "));
  EXPECT_THAT(stages(one, "sources = [{ path = \"./a.txt\", format = \"records\" }]"),
              HasSubstr("names ./a.txt"));
  EXPECT_THAT(stages(one, "split = \"sequences\""), HasSubstr("the same split"));
  EXPECT_THAT(stages(one + "\nsplit = \"sequences\"", "eos_token_id = -2"),
              HasSubstr("eos_token_id"));
  EXPECT_THAT(stages(one, "validation_sequences = 0"), HasSubstr("evaluates all of a.txt"));
  EXPECT_THAT(stages("sources = [{ path = \"a.txt\" }, { path = \"a.txt\" }]", ""),
              HasSubstr("data.transfer.sources names a.txt twice"));
}

TEST(Recipe, NamedTextsHaveTheKeysOfASourceAndOthersAreRefusedByField) {
  const auto texts = [](const std::string& list) {
    return refusal(
        "[model]\npath = \"t\"\n[data.transfer]\nsources = [{ path = \"a.txt\" }]\n"
        "[data.evaluate]\ntexts = [" +
        list + "]\n");
  };
  EXPECT_EQ(texts("{ name = \"wiki_2\", path = \"b.json\", format = \"jsonl\" }, "
                  "{ name = \"own\", path = \"c.txt\", in_domain = true }"),
            "accepted");
  EXPECT_THAT(texts("{ name = \"a\", path = \"b.txt\", formt = \"text\" }"),
              HasSubstr("data.evaluate.texts[0].formt is not a known key; did you mean "
                        "data.evaluate.texts[0].format?"));
  EXPECT_THAT(texts("\"b.txt\""), HasSubstr("data.evaluate.texts[0] expected a table, as { name"));
  EXPECT_THAT(texts("{ path = \"b.txt\" }"), HasSubstr("data.evaluate.texts[0].name = \"\""));
  EXPECT_THAT(texts("{ name = \"a/b\", path = \"b.txt\" }"), HasSubstr("letters, digits, - and _"));
  EXPECT_THAT(texts("{ name = \"a\" }"), HasSubstr("data.evaluate.texts[0].path is not set"));
  EXPECT_THAT(texts("{ name = \"validation\", path = \"b.txt\" }"),
              HasSubstr("is what the section's own split is called"));
  EXPECT_THAT(texts("{ name = \"a\", path = \"b.txt\" }, { name = \"a\", path = \"c.txt\" }"),
              HasSubstr("data.evaluate.texts[1].name = \"a\" is given twice"));
  EXPECT_THAT(texts("{ name = \"a\", path = \"./a.txt\" }"),
              HasSubstr("data.evaluate.texts[0].path names ./a.txt, which data.transfer learns"));
  std::string many;
  for (int i = 0; i < 17; ++i)
    many += "{ name = \"a" + std::to_string(i) + "\", path = \"b.txt\" }, ";
  EXPECT_THAT(texts(many), HasSubstr("names 17 texts, at most 16"));
}

TEST(Recipe, EachNamedTextHasATokensFileOfItsOwnAndTheValidationPartADomain) {
  Recipe recipe = minimal();
  recipe.texts = {{.name = "wiki", .source = {.path = "w.txt"}}};
  const auto files = recipe.tokens_files();
  ASSERT_EQ(files.size(), 4U);
  EXPECT_EQ(RunLayout::tokens(files.back()), "tokens/evaluate-wiki.h5");
  EXPECT_EQ(recipe.sources(files.back()).field, "data.evaluate.texts[0]");
  EXPECT_EQ(recipe.sources(files.back()).list.at(0).path, "w.txt");
  EXPECT_EQ(recipe.sources(files.front()).field, "data.transfer.sources");
  EXPECT_TRUE(recipe.validates_in_domain());
  recipe.data_evaluate.sources[0].path = "elsewhere.txt";
  EXPECT_FALSE(recipe.validates_in_domain());
}

TEST(Recipe, DifferenceTellsSafeChangesFromUnsafeOnes) {
  const Recipe before = minimal();
  EXPECT_THAT(difference(before, before).safe, IsEmpty());
  EXPECT_THAT(difference(before, before).unsafe, IsEmpty());
  Recipe after = before;
  after.workers.threads = 2;
  after.finetune.max_steps = 60;
  after.finetune.exchange = "mpi";
  after.finetune.launch = "elsewhere";
  after.transfer.learning_rate = 0.02;
  after.data_finetune.sources[0].path = "other.txt";
  const RecipeDifference changed = difference(before, after);
  EXPECT_THAT(changed.safe,
              ElementsAre("finetune.max_steps: 40 -> 60",
                          "finetune.exchange: \"auto\" -> \"mpi\"",
                          "finetune.launch: \"here\" -> \"elsewhere\"",
                          "workers.threads: 0 -> 2"));
  EXPECT_THAT(
      changed.unsafe,
      ElementsAre(HasSubstr("data.finetune.sources: "), "transfer.learning_rate: 0.01 -> 0.02"));
  after = before;
  after.finetune.max_steps = 20;
  EXPECT_THAT(difference(before, after).unsafe, ElementsAre("finetune.max_steps: 40 -> 20"));
}

TEST(Recipe, MoreFinetuneStepsAreNoSafeChangeWhereLogitsAreOfTheStepsOfATextOfItsOwn) {
  Recipe before = minimal();
  before.finetune.objective = "kl";
  Recipe after = before;
  after.finetune.max_steps = 60;
  EXPECT_THAT(difference(before, after).unsafe, IsEmpty()) << "of what the transfer captured";
  before.data_finetune.max_sequences = after.data_finetune.max_sequences = 100;
  EXPECT_THAT(difference(before, after).unsafe,
              ElementsAre(HasSubstr("finetune.max_steps: 40 -> 60 (the teacher's logits")));
}

TEST(Recipe, MoreFinetuneStepsAreNoSafeChangeWhereTheScheduleSpansThem) {
  for (const char* schedule : {"constant", "plateau", "cosine", "linear"}) {
    Recipe before = minimal();
    before.finetune.schedule = schedule;
    Recipe after = before;
    after.finetune.max_steps = 60;
    const RecipeDifference changed = difference(before, after);
    const bool is_safe = schedule == std::string("constant") || schedule == std::string("plateau");
    EXPECT_EQ(changed.safe.size(), is_safe ? 1U : 0U) << schedule;
    if (is_safe) continue;
    EXPECT_THAT(changed.unsafe,
                ElementsAre(AllOf(HasSubstr("finetune.max_steps: 40 -> 60 (finetune.schedule = \""),
                                  HasSubstr(schedule))));
  }
}

TEST(Recipe, RulesOfTheFinetuneThatNeedValidationsAreRefusedWithoutAny) {
  const std::string never = "[finetune]\nvalidate_every = 0\n";
  EXPECT_EQ(refusal_of(never + "early_stop_patience = 3\n"),
            "recipe.toml:8: finetune.early_stop_patience = 3 counts validations, but "
            "finetune.validate_every = 0 validates only at the end; set it to 1 or more, or leave "
            "the patience at 0");
  EXPECT_THAT(refusal_of(never + "schedule = \"plateau\"\n"),
              HasSubstr("finetune.schedule = \"plateau\" goes by validations, but "
                        "finetune.validate_every = 0"));
  const std::string none = "[data.finetune]\nvalidation_sequences = 0\n[finetune]\n";
  EXPECT_THAT(refusal_of(none + "early_stop_patience = 1\n"),
              HasSubstr("finetune.early_stop_patience = 1 counts validations, but "
                        "data.finetune.validation_sequences = 0"));
  EXPECT_THAT(refusal_of(none + "schedule = \"plateau\"\n"), HasSubstr("finetune.schedule"));
  EXPECT_EQ(refusal_of(never + "schedule = \"cosine\"\n"), "accepted");
}

TEST(Recipe, RatesOfTheFinetuneFitEachOther) {
  const std::string low = "[finetune]\nlearning_rate = 1e-6\n";
  EXPECT_EQ(refusal_of(low), "accepted") << "a constant rate has no lowest one";
  EXPECT_EQ(refusal_of(low + "schedule = \"linear\"\n"),
            "recipe.toml: finetune.min_learning_rate = 1e-05 is above finetune.learning_rate = "
            "1e-06");
  EXPECT_EQ(refusal_of("[finetune]\nwarmup_steps = 40\n"),
            "recipe.toml:7: finetune.warmup_steps = 40 must be below finetune.max_steps = 40");
}

TEST(Recipe, TheShippedRecipesAreValidAndTheReferenceIsThePublishedSchedule) {
  const std::string folder = std::string(HEDGEROW_SOURCE_DIR) + "/deploy/recipes/";
  EXPECT_NO_THROW((void)Recipe::load(folder + "smollm2_quickstart.toml"));
  const Recipe reference = Recipe::load(folder + "smollm2_reference.toml");
  EXPECT_EQ(reference.attention.start, FeatureMapStart::kKaiming);
  EXPECT_EQ(reference.attention.window, WindowLayout::kSliding);
  EXPECT_EQ(reference.attention.num_sinks, 0);
  EXPECT_EQ(reference.attention.key_maps, KeyMaps::kQueryHead);
  EXPECT_EQ(reference.attention.projected_dim(), 32);
  EXPECT_FALSE(reference.attention.bias);
  EXPECT_EQ(reference.transfer.max_steps, 60);
  EXPECT_EQ(reference.data_evaluate.split, "sequences");
  EXPECT_EQ(reference.data_evaluate.eos_token_id, 2);
  EXPECT_EQ(reference.data_transfer.sources.at(0).path,
            std::filesystem::path(HEDGEROW_SOURCE_DIR).parent_path() /
                "shared/data/roleplay_alpaca.json");
}

TEST(Recipe, TheShippedPublishedLlamaRecipesAreThePublishedStudentsIn20MillionTokens) {
  struct Published {
    std::string name, model;
    int layers_per_block;
    double xent_factor;
    int rank;
  };
  for (const Published& published : {Published{"llama3_8b_published", "8B", 5, 0.0, 8},
                                     Published{"llama3_70b_published", "70B", 5, 0.0, 8},
                                     Published{"llama3_405b_published", "405B", 9, 1.0, 4}}) {
    SCOPED_TRACE(published.name);
    const Recipe recipe = Recipe::load(std::string(HEDGEROW_SOURCE_DIR) + "/deploy/recipes/" +
                                       published.name + ".toml");
    EXPECT_EQ(recipe.model.path, "meta-llama/Meta-Llama-3.1-" + published.model);
    EXPECT_EQ(recipe.plan.layers_per_block, published.layers_per_block);
    EXPECT_EQ(recipe.transfer.mse_factor, 1000.0);
    EXPECT_EQ(recipe.transfer.xent_factor, published.xent_factor);
    EXPECT_EQ(recipe.finetune.rank, published.rank);
    EXPECT_EQ(recipe.finetune.alpha, 2.0 * published.rank);
    EXPECT_EQ(recipe.attention.projected_dim(), 64);
    EXPECT_EQ(recipe.attention.window, WindowLayout::kTerraced);
    EXPECT_EQ(recipe.attention.window_size, 64);
    EXPECT_EQ(recipe.attention.num_sinks, 0);
    const auto expect_20m = [](int steps, int sequences_per_step, int seq_len) {
      const double tokens = static_cast<double>(steps) * sequences_per_step * seq_len;
      EXPECT_NEAR(tokens, 20e6, sequences_per_step * seq_len);
    };
    expect_20m(recipe.transfer.max_steps,
               recipe.transfer.sequences_per_step,
               recipe.data_transfer.seq_len);
    expect_20m(recipe.finetune.max_steps,
               recipe.finetune.sequences_per_step,
               recipe.data_finetune.seq_len);
  }
}

TEST(Recipe, TheShippedLlamaRecipesAreOurSettingsIn20MillionTokens) {
  const std::filesystem::path recipes =
      std::filesystem::path(HEDGEROW_SOURCE_DIR) / "deploy" / "recipes";
  for (const std::string size : {"8b", "70b", "405b"}) {
    SCOPED_TRACE(size);
    const Recipe recipe = Recipe::load((recipes / ("llama3_" + size + ".toml")).string());
    const Recipe published =
        Recipe::load((recipes / ("llama3_" + size + "_published.toml")).string());
    EXPECT_EQ(recipe.model.path, published.model.path);
    EXPECT_EQ(recipe.plan.layers_per_block, published.plan.layers_per_block);
    EXPECT_EQ(recipe.attention.feature_dim, published.attention.feature_dim);
    EXPECT_EQ(recipe.attention.num_sinks, 4);
    EXPECT_EQ(recipe.attention.key_maps, KeyMaps::kKvHead);
    EXPECT_EQ(recipe.attention.recall_cache, recipe.attention.feature_dim / 2);
    EXPECT_TRUE(recipe.attention.bias);
    EXPECT_EQ(recipe.finetune.objective, "kl");
    EXPECT_THAT(recipe.finetune.trainable, ElementsAre("lora", "maps", "window_factors"));
    EXPECT_EQ(recipe.transfer.max_steps, published.transfer.max_steps);
    EXPECT_EQ(recipe.finetune.max_steps, published.finetune.max_steps);
  }
}

}  // namespace
}  // namespace hedgerow::storage
