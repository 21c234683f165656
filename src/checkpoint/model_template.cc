// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_template.h"

#include <map>
#include <utility>

#include "checkpoint/adapter.h"
#include "checkpoint/resolve.h"
#include "data/model_text.h"

namespace hocket::checkpoint {
namespace {

/// Returns the base that an adapter's folder names. Its weights need not be there.
std::string named_base(const std::string& adapter) {
  return resolve_model(base_of(adapter), Need::config).folder;
}

}  // namespace

ModelTemplate find_template(const std::string& model, const std::string& adapter,
                            const std::string& file, const std::string& key) {
  const bool has_adapter = !adapter.empty() && adapter != model;
  if (file.empty() && has_adapter) {
    if (std::optional<data::ChatTemplate> found = data::find_chat_template(adapter)) {
      std::map<std::string, std::string> tokens = found->special_tokens();
      tokens.merge(data::special_tokens(model));
      found->set_special_tokens(std::move(tokens));
      return {adapter, std::move(found)};
    }
  }
  ModelTemplate own{model, data::find_chat_template(model, file, key)};
  if (own.chat_template || !is_adapter(model)) return own;
  const std::string base = named_base(model);
  if (std::optional<data::ChatTemplate> found = data::find_chat_template(base)) {
    found->set_special_tokens(data::special_tokens(model));
    return {base, std::move(found)};
  }
  return own;
}

void complete_template(const std::string& folder, ModelFiles* files) {
  if (has_chat_template(*files) || !is_adapter(folder)) return;
  take_chat_template(read_model_files(named_base(folder)), files);
}

}  // namespace hocket::checkpoint
