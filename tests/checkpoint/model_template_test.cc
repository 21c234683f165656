// SPDX-License-Identifier: Apache-2.0
// Chat templates of models with adapters, and their special tokens.
#include "checkpoint/model_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/adapter.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::checkpoint {
namespace {

class ModelTemplates : public testing::Test {
 protected:
  void SetUp() override {
    write_file_atomic(base_ / "config.json", "{}");
    write_file_atomic(adapter_ / kAdapterConfigFile,
                      nlohmann::json{{"peft_type", "LORA"},
                                     {"r", 2},
                                     {"lora_alpha", 2},
                                     {"target_modules", {"q_proj"}},
                                     {"base_model_name_or_path", base_.path()}}
                          .dump());
  }
  static void write_config(const TempFolder& folder, const char* text) {
    write_file_atomic(folder / kTokenizerConfigFile, text);
  }
  /// Returns the text of the template that is found; "": none.
  static std::string rendered(const TempFolder& model, const std::string& adapter,
                              const std::string& file = "") {
    const ModelTemplate found = find_template(model.path(), adapter, file);
    if (!found.chat_template) return "";
    return found.chat_template->render(nlohmann::ordered_json::parse(R"([{"role": "user"}])")).text;
  }

  const TempFolder base_, adapter_;
};

TEST_F(ModelTemplates, AnAdapterComesFirstWithTheTokensThatItLacks) {
  EXPECT_EQ(rendered(base_, adapter_.path()), "");
  write_config(base_, R"({"bos_token": "<b>", "eos_token": "<e>", "chat_template": "old"})");
  EXPECT_EQ(rendered(base_, adapter_.path()), "old");
  const char* text = R"({"eos_token": "<a>", "chat_template": "new {{ bos_token ~ eos_token }}"})";
  write_config(adapter_, text);
  EXPECT_EQ(rendered(base_, adapter_.path()), "new <b><a>");
  EXPECT_EQ(find_template(base_.path(), adapter_.path(), "").source, adapter_.path());
  EXPECT_EQ(rendered(base_, ""), "old");
  write_file_atomic(base_ / "file.jinja", "file {{ eos_token }}");
  EXPECT_EQ(rendered(base_, adapter_.path(), base_ / "file.jinja"), "file <e>");
}

TEST_F(ModelTemplates, AnAdaptersFolderWithoutOneHasThatOfItsBase) {
  write_config(base_, R"({"eos_token": "<e>", "chat_template": "old {{ eos_token }}"})");
  write_config(adapter_, R"({"eos_token": "<a>"})");
  EXPECT_EQ(rendered(adapter_, adapter_.path()), "old <a>");
  EXPECT_EQ(rendered(adapter_, ""), "old <a>");
  ModelFiles files;
  files.texts[kTokenizerConfigFile] = R"({"eos_token": "<a>"})";
  complete_template(base_.path(), &files);
  EXPECT_FALSE(has_chat_template(files));
  complete_template(adapter_.path(), &files);
  EXPECT_EQ(chat_template_of(files, "m"), "old {{ eos_token }}");
  write_config(adapter_, R"({"chat_template": "new"})");
  EXPECT_EQ(rendered(adapter_, adapter_.path()), "new");
}

}  // namespace
}  // namespace hocket::checkpoint
