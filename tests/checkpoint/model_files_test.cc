// SPDX-License-Identifier: Apache-2.0
// Files beside weights: the copied ones, and their part of a GGUF file. Tokens added to a
// model.
#include "checkpoint/model_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/add_tokens.h"
#include "checkpoint/convert.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::checkpoint {
namespace {

using graph::DType;
using models::ModelConfig;
using nlohmann::json;

/// Tokens a to z and a special one.
std::string tokenizer_text() {
  json vocab = json::object();
  for (int i = 0; i < 26; ++i) {
    vocab[std::string(1, static_cast<char>('a' + i))] = i;
  }
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return json{{"version", "1.0"},
              {"added_tokens",
               {{{"id", 26}, {"content", "<end>"}, {"special", true}, {"normalized", false}}}},
              {"pre_tokenizer", bytes},
              {"decoder", bytes},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}}
      .dump(2);
}

ModelConfig config_with(const json& keys, bool tied = false) {
  json object = json::parse(small_config("llama", tied).json);
  object.update(keys);
  return models::parse_config(object.dump(), "test");
}

/// Writes random weights of a model.
void write_model(const ModelConfig& config, const std::string& folder) {
  std::vector<std::vector<char>> storage;
  const std::vector<NamedTensor> params = random_params(config, DType::f32, 3, storage);
  save_safetensors(join_path(folder, "model.safetensors"), to_stored(config, params));
}

TEST(ModelFiles, TextsBesideTheWeightsAreTakenAndOthersListed) {
  const TempFolder folder;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    write_file_atomic(folder / name, "{}");
  }
  for (const char* name : {"LICENSE", "license.txt", "NOTICE", "README.md", "chat_template.jinja",
                           "merges.txt", "tokenizer.model"}) {
    write_file_atomic(folder / name, "text");
  }
  for (const char* name : {"model.safetensors", "config.json", "optimizer.safetensors", "run.json",
                           ".gitattributes", "model.safetensors.index.json", "pytorch_model.bin"}) {
    write_file_atomic(folder / name, "x");
  }
  write_file_atomic(folder / "preprocessor_config.json", "{}");
  make_dirs(folder / "additional_chat_templates");
  const ModelFiles files = read_model_files(folder.path());
  EXPECT_EQ(files.texts.size(), 10u);
  EXPECT_EQ(files.texts.at("LICENSE"), "text");
  EXPECT_EQ(files.left,
            (std::vector<std::string>{"additional_chat_templates/", "preprocessor_config.json"}));
  write_file_atomic(folder / "tokenizer.json", "{");
  EXPECT_NE(error_of([&] { read_model_files(folder.path()); }).find("tokenizer.json"),
            std::string::npos);
}

TEST(ModelFiles, AutoTokenizerFindsItsConfiguration) {
  const ModelConfig config = config_with({{"eos_token_id", 26}});
  ModelFiles files;
  files.texts["tokenizer.json"] = tokenizer_text();
  complete_tokenizer(config, &files);
  EXPECT_EQ(json::parse(files.texts.at("tokenizer_config.json"))["eos_token"], "<end>");
  files.texts["tokenizer_config.json"] = "{\"x\":1}";
  complete_tokenizer(config, &files);
  EXPECT_EQ(files.texts.at("tokenizer_config.json"), "{\"x\":1}");
}

TEST(ModelFiles, AnotherTokenizerReplacesAllOfTheFirst) {
  const TempFolder folder;
  EXPECT_NE(error_of([&] {
              ModelFiles files;
              take_tokenizer(folder.path(), &files);
            }).find("expected a tokenizer.json"),
            std::string::npos);
  write_file_atomic(folder / "tokenizer.json", tokenizer_text());
  ModelFiles files;
  files.texts = {{"merges.txt", "old"}, {"LICENSE", "kept"}, {"chat_template.jinja", "old"}};
  take_tokenizer(folder / "tokenizer.json", &files);
  EXPECT_EQ(files.texts.size(), 2u);
  EXPECT_EQ(files.texts.at("LICENSE"), "kept");
  EXPECT_EQ(files.texts.at("tokenizer.json"), tokenizer_text());
}

TEST(ModelFiles, AChatTemplateReplacesAllOthers) {
  ModelFiles files;
  files.texts["tokenizer_config.json"] = "{\"x\":1}";
  EXPECT_FALSE(set_chat_template("A", &files));
  EXPECT_EQ(files.texts.at("tokenizer_config.json"), "{\"x\":1}");
  EXPECT_TRUE(set_chat_template("B", &files));
  files.texts["tokenizer_config.json"] = R"({"chat_template": "old", "x": 1})";
  EXPECT_TRUE(set_chat_template("C", &files));
  EXPECT_EQ(files.texts.at("chat_template.jinja"), "C");
  EXPECT_EQ(json::parse(files.texts.at("tokenizer_config.json")), (json{{"x", 1}}));
}

TEST(ModelFiles, ChatTemplatesOfOthersAreTaken) {
  const json list = {{{"name", "default"}, {"template", "D"}},
                     {{"name", "tool_use"}, {"template", "T"}}};
  ModelFiles with_file, with_key, without, files;
  with_file.texts["chat_template.jinja"] = "F";
  with_file.texts["tokenizer_config.json"] = json{{"chat_template", "hidden"}}.dump();
  with_key.texts["tokenizer_config.json"] = json{{"chat_template", list}, {"y", 2}}.dump();
  without.texts["tokenizer_config.json"] = R"({"chat_template": null})";
  files.texts["tokenizer_config.json"] = json{{"chat_template", "old"}, {"x", 1}}.dump();
  const auto config = [&] { return json::parse(files.texts.at("tokenizer_config.json")); };
  take_chat_template(with_file, &files);
  EXPECT_EQ(chat_template_of(files, "m"), "F");
  EXPECT_EQ(config(), (json{{"x", 1}}));
  take_chat_template(without, &files);
  EXPECT_EQ(chat_template_of(files, "m"), "F");
  take_chat_template(with_key, &files);
  EXPECT_EQ(chat_template_of(files, "m"), "D");
  EXPECT_EQ(config(), (json{{"chat_template", list}, {"x", 1}}));
}

TEST(ModelFiles, StopTokensAreAUnion) {
  const ModelConfig config = config_with({{"eos_token_id", 3}});
  ModelFiles files;
  EXPECT_EQ(add_stop_tokens({3}, config, &files), "");
  EXPECT_NE(add_stop_tokens({5}, config, &files).find("[3, 5], not [3]"), std::string::npos);
  files.texts["generation_config.json"] = R"({"temperature": 0.5, "eos_token_id": null})";
  EXPECT_NE(add_stop_tokens({5}, config, &files), "");
  const json made = json::parse(files.texts.at("generation_config.json"));
  EXPECT_EQ(made, (json{{"temperature", 0.5}, {"eos_token_id", 5}}));
}

TEST(ModelFiles, IdsFollowTheSpecialTokensOfAnotherTokenizer) {
  const auto files_with = [](const json& keys) {
    ModelFiles files;
    files.texts[kTokenizerFile] = tokenizer_text();
    files.texts[kTokenizerConfigFile] = keys.dump();
    return files;
  };
  const ModelConfig before = config_with({{"eos_token_id", 3}, {"bos_token_id", 1}});
  const ModelFiles base = files_with({{"eos_token", "d"}, {"bos_token", "b"}});
  ModelConfig config = before;
  ModelFiles files = base;
  EXPECT_TRUE(take_special_tokens(base, &config, &files).empty());
  EXPECT_EQ(config.json, before.json);
  EXPECT_EQ(files.texts, base.texts);

  files =
      files_with({{"eos_token", {{"content", "<end>"}}}, {"bos_token", "b"}, {"pad_token", "c"}});
  files.texts[kGenerationFile] = R"({"eos_token_id": [3, 7], "bos_token_id": 1, "top_k": 5})";
  const std::vector<std::string> notes = take_special_tokens(base, &config, &files);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{26});
  EXPECT_EQ(config.pad_token_id, 2);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(json::parse(files.texts.at(kGenerationFile)),
            json::parse(R"({"eos_token_id": [3, 7, 26], "bos_token_id": 1, "pad_token_id": 2,
                            "top_k": 5})"));
  EXPECT_EQ(notes, (std::vector<std::string>{
                       "generation_config.json: eos_token_id is [3, 7, 26], not [3, 7]",
                       "config.json: eos_token_id is 26, not 3",
                       "generation_config.json: pad_token_id is 2, not absent",
                       "config.json: pad_token_id is 2, not absent"}));

  // Tokens of the configuration and the tokenizer end texts where the file names none.
  config = before;
  files = files_with({{"eos_token", "<end>"}});
  files.texts[kGenerationFile] = R"({"top_k": 5})";
  take_special_tokens(base, &config, &files);
  EXPECT_EQ(json::parse(files.texts.at(kGenerationFile)).at("eos_token_id"), (json{3, 26}));

  ModelConfig small = config_with({{"vocab_size", 26}});
  EXPECT_NE(error_of([&] {
              take_special_tokens(base, &small, &files);
            }).find("eos_token_id would be 26; expected a token below the model's vocab_size 26"),
            std::string::npos);
}

TEST(ModelFiles, AGgufFileHoldsTokenizerTemplateAndSampling) {
  const ModelConfig config = config_with({{"eos_token_id", {26, 3}}});
  ModelFiles files;
  files.texts["tokenizer.json"] = tokenizer_text();
  files.texts["tokenizer_config.json"] =
      json{{"eos_token", "<end>"},
           {"model_max_length", 77},
           {"chat_template",
            {{{"name", "default"}, {"template", "D"}}, {{"name", "tool_use"}, {"template", "T"}}}}}
          .dump();
  files.texts["generation_config.json"] =
      R"({"do_sample": true, "temperature": 0.5, "top_k": 7, "max_new_tokens": 9,
          "eos_token_id": [26, 3, 4, 5]})";
  files.texts["README.md"] = "---\nlicense: apache-2.0\nlicense_link: 'L'\n---\nlicense: other\n";
  files.texts["LICENSE"] = "text";
  gguf::Metadata metadata("m");
  const std::vector<std::string> lost = add_gguf_files(files, config, "m", &metadata);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eos_token_id"), 26);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eot_token_id"), 3);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eom_token_id"), 4);
  EXPECT_EQ(metadata.string("tokenizer.chat_template"), "D");
  EXPECT_EQ(metadata.string("tokenizer.chat_template.tool_use"), "T");
  EXPECT_EQ(metadata.number("general.sampling.temp"), 0.5);
  EXPECT_EQ(metadata.integer("general.sampling.top_k"), 7);
  EXPECT_EQ(metadata.string("general.license"), "apache-2.0");
  EXPECT_EQ(metadata.string("general.license.link"), "L");
  ASSERT_EQ(lost.size(), 5u);
  EXPECT_NE(lost[0].find("stop token 5"), std::string::npos);
  EXPECT_NE(lost[1].find("max_new_tokens"), std::string::npos);
  EXPECT_NE(lost[2].find("model_max_length 77"), std::string::npos);
  EXPECT_EQ(lost[3], "LICENSE");
  EXPECT_NE(lost[4].find("README.md"), std::string::npos);
}

TEST(ModelFiles, ReportsTokensAroundATextThatAGgufFileLacks) {
  const ModelConfig config = config_with({{"eos_token_id", 26}});
  const auto special = [](const char* name) {
    return json::object({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
  };
  const json whole = json::object({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  const auto lost = [&](const json& single, const json& tokenizer_config) {
    json tokenizer = json::parse(tokenizer_text());
    tokenizer["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}};
    for (const auto& [name, id] : {std::pair{"a", 0}, {"<end>", 26}}) {
      tokenizer["post_processor"]["special_tokens"][name]["ids"] = json::array({id});
    }
    ModelFiles files;
    files.texts["tokenizer.json"] = tokenizer.dump();
    files.texts["tokenizer_config.json"] = tokenizer_config.dump();
    gguf::Metadata metadata("m");
    return join(add_gguf_files(files, config, "m", &metadata), "; ");
  };
  const json begins = {{"bos_token", "a"}};
  EXPECT_EQ(lost(json::array({special("a"), whole}), begins), "");
  EXPECT_EQ(lost(json::array({special("a"), special("<end>"), whole}), begins),
            "the post-processor's 'a' '<end>' before a text: the file has 'a'");
  EXPECT_EQ(lost(json::array({whole, special("<end>")}), json::object()),
            "the post-processor's '<end>' behind a text");
  const json silent = {{"bos_token", "a"}, {"add_bos_token", false}};
  EXPECT_EQ(lost(json::array({special("a"), whole}), silent), "");
}

TEST(ModelFiles, NamedTemplatesAreReadBack) {
  const TempFolder folder;
  const ModelConfig config = config_with({{"eos_token_id", 26}});
  ModelFiles files;
  files.texts["tokenizer.json"] = tokenizer_text();
  const json list = {{{"name", "default"}, {"template", "D"}},
                     {{"name", "tool_use"}, {"template", "T"}}};
  files.texts["tokenizer_config.json"] =
      json{{"eos_token", "<end>"}, {"chat_template", list}}.dump();
  files.texts["generation_config.json"] = R"({"do_sample": false, "temperature": 0.5})";
  write_model(config, folder.path());
  const ModelWeights weights(folder.path(), config);
  gguf::Metadata metadata = gguf_metadata(config, gguf::ElementType::f32, "m");
  EXPECT_TRUE(add_gguf_files(files, config, "m", &metadata).empty());
  export_gguf(source_of(weights, config), gguf::ElementType::f32, metadata, folder / "m.gguf");
  const ModelFiles back = read_model_files(folder / "m.gguf");
  EXPECT_EQ(json::parse(back.texts.at("tokenizer_config.json"))["chat_template"], list);
  EXPECT_FALSE(back.has("chat_template.jinja"));
  EXPECT_EQ(chat_template_of(back, "m"), "D");
  EXPECT_TRUE(back.left.empty());
  // Greedy, whatever the temperature beside it.
  const json generation = json::parse(back.texts.at("generation_config.json"));
  EXPECT_EQ(generation["do_sample"], false);
  EXPECT_FALSE(generation.contains("temperature"));
}

TEST(ModelFiles, AGgufFileHoldsWhatTransformersReadsOfAFolder) {
  const ModelConfig config = config_with({{"eos_token_id", 26}});
  ModelFiles files;
  files.texts["tokenizer.json"] = tokenizer_text();
  const json list = {{{"name", "default"}, {"template", "D"}},
                     {{"name", "tool_use"}, {"template", "T"}}};
  files.texts["tokenizer_config.json"] = json{{"eos_token", "a"}, {"chat_template", list}}.dump();
  files.texts["special_tokens_map.json"] =
      R"({"eos_token": {"content": "<end>"}, "bos_token": "b"})";
  files.texts["chat_template.jinja"] = "F";
  gguf::Metadata metadata("m");
  add_gguf_files(files, config, "m", &metadata);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eos_token_id"), 26);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.bos_token_id"), 1);
  EXPECT_EQ(metadata.string("tokenizer.chat_template"), "F");
  EXPECT_FALSE(metadata.has("tokenizer.chat_template.tool_use"));
}

TEST(ModelFiles, ReportsSamplingKeysThatTransformersDoesNotUse) {
  const ModelConfig config = config_with({{"eos_token_id", 26}});
  ModelFiles files;
  files.texts["tokenizer.json"] = tokenizer_text();
  files.texts["generation_config.json"] = R"({"temperature": 0.5, "top_k": 7})";
  gguf::Metadata metadata("m");
  const std::vector<std::string> lost = add_gguf_files(files, config, "m", &metadata);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_NE(lost[0].find("temperature, top_k"), std::string::npos) << lost[0];
  EXPECT_FALSE(metadata.has("general.sampling.temp"));
}

/// A model with a tokenizer of 27 tokens and 37 rows.
struct Model {
  explicit Model(bool tied = false, int64_t rows = 37)
      : config(config_with({{"vocab_size", rows}, {"eos_token_id", 26}}, tied)) {
    write_file_atomic(folder / "config.json", models::config_json(config, "float32"));
    save_safetensors(folder / "model.safetensors",
                     to_stored(config, random_params(config, DType::f32, 3, storage)));
    weights.emplace(folder.path(), config);
    files.texts["tokenizer.json"] = tokenizer_text();
    complete_tokenizer(config, &files);
  }
  ExtendedModel with(const TokenAdditions& additions) const {
    return add_tokens(*weights, config, files, additions);
  }
  std::vector<float> row(const ModelSource& source, const std::string& param, int64_t id) const {
    std::vector<float> numbers(24);
    source.read(param, id * 24, 24, DType::f32, numbers.data());
    return numbers;
  }
  std::vector<float> row(const std::string& param, int64_t id) const {
    return row(source_of(*weights, config), param, id);
  }

  TempFolder folder;
  ModelConfig config;
  std::vector<std::vector<char>> storage;
  std::optional<ModelWeights> weights;
  ModelFiles files;
};

constexpr const char* kTables[] = {"model.embed_tokens.weight", "lm_head.weight"};

TEST(AddTokens, NewRowsAreTheMeanOfTheOthers) {
  const Model model(false, 27);
  const ExtendedModel made = model.with({.special = {"<a>", "<b>"}, .pad_to_multiple_of = 8});
  EXPECT_EQ(made.source.config.vocab_size, 32);
  EXPECT_EQ(made.rows_before, 27);
  EXPECT_EQ(made.added, (std::vector<std::pair<std::string, int64_t>>{{"<a>", 27}, {"<b>", 28}}));
  for (const char* param : kTables) {
    std::vector<double> mean(24);
    for (int64_t id = 0; id < 27; ++id) {
      const std::vector<float> old = model.row(param, id);
      EXPECT_EQ(old, model.row(made.source, param, id)) << id;
      for (size_t i = 0; i < old.size(); ++i) {
        mean[i] += old[i] / 27.0;
      }
    }
    for (int64_t id = 27; id < 32; ++id) {
      const std::vector<float> got = model.row(made.source, param, id);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], mean[i], 1e-6);
      }
    }
  }
  // A range across old and new rows.
  std::vector<float> across(5 * 24);
  made.source.read(kTables[0], 25 * 24 + 3, 4 * 24, DType::f32, across.data());
  EXPECT_EQ(across[0], model.row(kTables[0], 25)[3]);
  EXPECT_EQ(across[2 * 24 - 3], model.row(made.source, kTables[0], 27)[0]);
  EXPECT_EQ(across[4 * 24 - 1], model.row(made.source, kTables[0], 29)[2]);
}

TEST(AddTokens, SpareRowsAreTakenFirst) {
  const Model model(true);
  const ExtendedModel made = model.with({.special = {"<a>"}, .words = {"cat"}, .init = "text:ab"});
  EXPECT_EQ(made.source.config.vocab_size, 37);
  const std::vector<float> a = model.row(kTables[0], 0), b = model.row(kTables[0], 1);
  for (const int64_t id : {27, 28}) {
    const std::vector<float> got = model.row(made.source, kTables[0], id);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_FLOAT_EQ(got[i], static_cast<float>((double{a[i]} + b[i]) / 2));
    }
  }
  EXPECT_EQ(model.row(made.source, kTables[0], 29), model.row(kTables[0], 29));
  const auto tokenizer = data::Tokenizer::parse(made.files.texts.at("tokenizer.json"), "t");
  EXPECT_EQ(tokenizer.encode("acat<a>b"), (std::vector<int32_t>{0, 28, 27, 1}));
  const int32_t id = 27;
  EXPECT_EQ(tokenizer.decode({&id, 1}, true), "");
}

TEST(AddTokens, RowsMayBeGiven) {
  const Model model(false, 27);
  std::vector<float> rows(2 * 24);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(i);
  }
  const std::string path = model.folder / "rows.safetensors";
  save_safetensors(path, {{kTables[0], {DType::f32, {2, 24}}, rows.data()},
                          {kTables[1], {DType::f32, {2, 24}}, rows.data()}});
  const ExtendedModel made = model.with({.special = {"<a>", "<b>"}, .init = path});
  EXPECT_EQ(model.row(made.source, kTables[1], 28)[1], 25.0f);
  EXPECT_NE(error_of([&] {
              model.with({.special = {"<a>"}, .init = path});
            }).find("shape [2,24]; expected [1,24]"),
            std::string::npos);
  save_safetensors(path, {{kTables[0], {DType::f32, {2, 24}}, rows.data()}});
  EXPECT_NE(error_of([&] {
              model.with({.special = {"<a>", "<b>"}, .init = path});
            }).find("'lm_head.weight' is missing"),
            std::string::npos);
}

TEST(AddTokens, FilesSayWhatTheTokensAreFor) {
  Model model;
  model.files.texts["tokenizer_config.json"] = json{
      {"eos_token", "<end>"},
      {"chat_template", "old"},
      {"additional_special_tokens", {"<end>"}},
      {"added_tokens_decoder",
       {{"26", {{"content", "<end>"}}}}}}.dump();
  model.files.texts["special_tokens_map.json"] = R"({"eos_token": "<end>"})";
  model.files.texts["added_tokens.json"] = R"({"<end>": 26})";
  model.files.texts["generation_config.json"] = R"({"top_k": 5, "eos_token_id": 26})";
  const ExtendedModel made = model.with({.special = {"<a>"},
                                         .eos = "<stop>",
                                         .pad = "<end>",
                                         .chat_template = "{{ messages[0].content }}"});
  const auto text = [&](const char* name) { return json::parse(made.files.texts.at(name)); };
  const json config = text("tokenizer_config.json");
  EXPECT_EQ(config["eos_token"], "<stop>");
  EXPECT_EQ(config["pad_token"], "<end>");
  EXPECT_EQ(config["additional_special_tokens"], (json{"<end>", "<a>"}));
  EXPECT_EQ(config["added_tokens_decoder"]["28"]["content"], "<stop>");
  EXPECT_FALSE(config.contains("chat_template"));
  EXPECT_EQ(made.files.texts.at("chat_template.jinja"), "{{ messages[0].content }}");
  EXPECT_EQ(text("special_tokens_map.json")["eos_token"], "<stop>");
  EXPECT_EQ(text("added_tokens.json")["<a>"], 27);
  EXPECT_EQ(text("generation_config.json"),
            (json{{"top_k", 5}, {"eos_token_id", {26, 28}}, {"pad_token_id", 26}}));
  EXPECT_EQ(made.source.config.eos_token_ids, std::vector<int64_t>{28});
  EXPECT_EQ(made.source.config.pad_token_id, 26);
}

TEST(AddTokens, RefusesTokensThatCannotBeAdded) {
  const Model model;
  const auto expect = [&](const TokenAdditions& additions, const std::string& part) {
    const std::string text = error_of([&] { model.with(additions); });
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  };
  expect({.special = {""}}, "no text");
  expect({.special = {"<a>"}, .words = {"<a>"}}, "twice");
  expect({.special = {"<a>"}, .init = "zeros"}, "expected mean, text:TEXT");
  expect({.special = {"<a>"}, .chat_template = "{% if %}"}, "--chat-template");
  // A token that is there already changes nothing.
  const ExtendedModel same = model.with({.special = {"<end>"}});
  EXPECT_TRUE(same.added.empty());
  ASSERT_EQ(same.notes.size(), 1u);
  EXPECT_NE(same.notes[0].find("already a token, 26"), std::string::npos);
  EXPECT_EQ(same.files.texts.at("tokenizer.json"), tokenizer_text());
}

TEST(AddTokens, ATokenizerWithoutAddedTokensGetsAList) {
  Model model;
  for (const json& none : {json(), json::array()}) {
    json object = json::parse(tokenizer_text());
    object["added_tokens"] = none;
    object["model"]["vocab"]["<end>"] = 26;
    if (none.is_null()) {
      object.erase("added_tokens");
    }
    model.files.texts["tokenizer.json"] = object.dump();
    const ExtendedModel made = model.with({.special = {"<a>"}});
    const json list = json::parse(made.files.texts.at("tokenizer.json"))["added_tokens"];
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0]["id"], 27);
  }
}

}  // namespace
}  // namespace hocket::checkpoint
