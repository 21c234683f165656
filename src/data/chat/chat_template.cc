// SPDX-License-Identifier: Apache-2.0
#include "data/chat/chat_template.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/chat/content_parts.h"
#include "data/chat/evaluator.h"
#include "data/chat/python_text.h"
#include "data/tokenizer/tokenizer_config.h"

namespace hocket::data {
namespace {

using OrderedJson = nlohmann::ordered_json;
using jinja::Value;

constexpr int kMaxJsonDepth = 100;
constexpr int64_t kMaxTemplateBytes = int64_t{4} << 20;
constexpr int64_t kProbeSteps = 1'000'000;  // of a rendering that finds out what a template reads
constexpr size_t kMaxProbedRoles = 64;      // roles whose finding is kept
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Fields that hold a message's reasoning; transformers reads the first present one as all of them.
constexpr const char* kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

std::tm machine_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

Value to_value(const OrderedJson& json, const std::string& where, int depth = 0) {
  if (depth > kMaxJsonDepth) fail(where, "nested deeper than {} levels", kMaxJsonDepth);
  switch (json.type()) {
    case OrderedJson::value_t::null:
      return Value::none();
    case OrderedJson::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) {
        fail(where, "the number {} is beyond 64 bits", json.get<uint64_t>());
      }
      return Value::integer(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return Value::real(json.get<double>());
    case OrderedJson::value_t::string:
      return Value::text(json.get<std::string>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) {
        items.push_back(to_value(item, where, depth + 1));
      }
      return Value::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      jinja::Budget unlimited({.max_steps = INT64_MAX, .max_bytes = INT64_MAX});
      jinja::Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.set(&unlimited, Value::text(key), to_value(item, where, depth + 1));
      }
      return Value::dict(std::move(dict));
    }
    default:
      fail(where, "a binary value; expected JSON");
  }
}

/// Returns the message as templates see it: without null fields, and with its reasoning under the
/// names that templates read.
OrderedJson normalized(const OrderedJson& message) {
  OrderedJson out = OrderedJson::object();
  const char* const* field = std::find_if(
      std::begin(kReasoningFields), std::end(kReasoningFields),
      [&](const char* name) { return message.contains(name) && !message.at(name).is_null(); });
  const bool reasons = field != std::end(kReasoningFields);
  if (reasons) {
    out["thinking"] = message.at(*field);
  }
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) {
      out[key] = value;
    }
  }
  if (reasons) {
    out["reasoning_content"] = message.at(*field);
  }
  return out;
}

std::string role_of(const OrderedJson& message) {
  return message.is_object() && message.contains("role") && message.at("role").is_string()
             ? message.at("role").get<std::string>()
             : "";
}

// Text that the model is to continue, which `mark` lets follow by a tag.
class Continuation {
 public:
  Continuation(std::string field, std::string where)
      : field_(std::move(field)), where_(std::move(where)) {}

  void mark(OrderedJson* message, const std::string& source) {
    const bool reasons = std::find(std::begin(kReasoningFields), std::end(kReasoningFields),
                                   field_) != std::end(kReasoningFields);
    std::vector<std::string> fields = {field_};
    if (!message->contains(field_)) {
      fail(where_, "the last message has no '{}' to continue", field_);
    }
    if (reasons) {
      fields.clear();
      for (const char* name : kReasoningFields) {
        if (message->contains(name) && message->at(name) == message->at(field_)) {
          fields.emplace_back(name);
        }
      }
    }
    if (std::none_of(fields.begin(), fields.end(), [&](const std::string& name) {
          return source.find(name) != std::string::npos;
        })) {
      fail(where_, "the template does not read '{}', which is to be continued", field_);
    }
    for (const std::string& name : fields) {
      mark_text(&message->at(name));
    }
  }

  void cut(std::string* text) const {
    const std::string_view tag = kContinueTag.substr(0, kContinueTag.size() - 1);
    const size_t at = text->rfind(tag);
    if (at == std::string::npos || text->find(jinja::strip(text_)) == std::string::npos) {
      fail(where_,
           "the template does not print the last message as it is; expected one that can "
           "be continued");
    }
    const bool keeps_space = std::string_view(*text).substr(at).starts_with(kContinueTag);
    text->resize(at);
    if (!keeps_space) {
      text->resize(jinja::strip_right(*text).size());
    }
  }

 private:
  void mark_text(OrderedJson* content) {
    if (content->is_array()) {
      for (auto block = content->rbegin(); block != content->rend(); ++block) {
        if (block->is_object() && block->contains("text")) return mark_text(&block->at("text"));
      }
      fail(where_, "the last message has no text to continue");
    }
    if (!content->is_string()) fail(where_, "the last message's '{}' is no text", field_);
    text_ = content->get<std::string>();
    *content = text_ + std::string(kContinueTag);
  }

  std::string field_, where_, text_;
};

/// A special token of a configuration: "<s>" or {"content": "<s>", ..}.
std::optional<std::string> token_text(const JsonView& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_object() && value.has("content") && value.at("content").is_string()) {
    return value.at("content").as_string();
  }
  return std::nullopt;
}

}  // namespace

std::map<std::string, std::string> special_tokens_of(const JsonView& config) {
  if (!config.is_object()) {
    config.fail("is no object");
  }
  std::map<std::string, std::string> out;
  for (const std::string& key : config.keys()) {
    if (!key.ends_with("_token") || !config.has(key)) continue;
    if (const auto text = token_text(config.at(key))) {
      out[key] = *text;
    }
  }
  return out;
}

struct ChatTemplate::Impl {
  struct Source {
    std::string text;
    jinja::Program program;
  };
  std::string where;
  std::map<std::string, Source> sources;  ///< by name; a single one is "default"
  std::map<std::string, std::string> special_tokens;
  mutable std::mutex probed_mutex;
  /// Findings of reads_parts(): a template may read parts otherwise where there are tools.
  mutable std::map<std::tuple<const Source*, bool, std::string>, bool> probed;

  void add(const std::string& name, std::string text, const std::string& named) {
    jinja::Program program = jinja::parse(text, named);
    sources[name] = {std::move(text), std::move(program)};
  }

  const Source& choose(bool with_tools) const {
    const auto found =
        sources.find(with_tools && sources.contains("tool_use") ? "tool_use" : "default");
    if (found != sources.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [name, source] : sources) {
      names.push_back(name);
    }
    fail(where, "several templates ({}) and no default", join(names, ", "));
  }

  /// Returns whether the template reads the text parts of this role's messages.
  bool reads_parts(const std::string& role, bool with_tools) const {
    const std::lock_guard lock(probed_mutex);
    const auto key = std::tuple(&choose(with_tools), with_tools, role);
    if (const auto known = probed.find(key); known != probed.end()) return known->second;
    static const OrderedJson no_tools = OrderedJson::array();
    ChatOptions options;
    options.tools = with_tools ? &no_tools : nullptr;
    const bool reads =
        reads_text_parts(role, [&](const OrderedJson& messages) -> std::optional<std::string> {
          try {
            return render(messages, options, kProbeSteps).text;
          } catch (const jinja::LocatedFault&) {
            return std::nullopt;
          }
        });
    if (probed.size() < kMaxProbedRoles) {
      probed.emplace(key, reads);
    }
    return reads;
  }

  /// Returns messages as the template sees them: normalised, and with a string for text parts that
  /// it does not read.
  OrderedJson normalized_messages(const OrderedJson& messages, bool with_tools) const {
    if (!messages.is_array()) fail(where, "the messages are no list; expected a list of objects");
    if (messages.empty()) fail(where, "no messages; expected at least one");
    OrderedJson out = OrderedJson::array();
    for (size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].is_object()) {
        fail(where, "message {} is no object; expected one with a role and a content", i);
      }
      out.push_back(normalized(messages[i]));
      if (has_text_parts(out.back()) && !reads_parts(role_of(out.back()), with_tools)) {
        join_text_parts(&out.back());
      }
    }
    return out;
  }

  // Renders normalised messages. Throws LocatedFault.
  jinja::Rendered render(const OrderedJson& messages, const ChatOptions& options,
                         int64_t steps) const {
    std::vector<std::pair<std::string, Value>> variables;
    const auto set = [&](const std::string& name, Value value) {
      variables.emplace_back(name, std::move(value));
    };
    for (const auto& [name, token] : special_tokens) {
      set(name, Value::text(token));
    }
    static constexpr std::string_view kOwn[] = {"messages", "tools", "documents",
                                                "add_generation_prompt"};
    if (options.variables != nullptr) {
      if (!options.variables->is_object()) fail(where, "the variables are no object");
      for (const auto& [name, value] : options.variables->items()) {
        if (std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn)) {
          fail(where, "the variable '{}' is the template's own; expected another name", name);
        }
        set(name, to_value(value, where));
      }
    }
    const auto optional = [&](const OrderedJson* json) {
      return json != nullptr ? to_value(*json, where) : Value::none();
    };
    set("messages", to_value(messages, where));
    set("tools", optional(options.tools));
    set("documents", optional(options.documents));
    set("add_generation_prompt", Value::boolean(options.add_generation_prompt));
    jinja::EvaluatorOptions evaluator_options;
    evaluator_options.limits.max_steps = steps;
    evaluator_options.local_time = options.local_time ? options.local_time : machine_time;
    return evaluate(choose(options.tools != nullptr).program, variables, evaluator_options);
  }

  jinja::Rendered render_or_fail(const OrderedJson& messages, const ChatOptions& options) const {
    try {
      return render(messages, options, options.max_steps);
    } catch (const jinja::LocatedFault& located) {
      const std::string& named = choose(options.tools != nullptr).program.where;
      const auto index = message_at_fault(messages, options, located.fault.text);
      std::string about;
      if (index) {
        const std::string role = role_of(messages[*index]);
        about = fmt::format("; message {}{}", *index,
                            role.empty() ? "" : fmt::format(" (role {})", quote(role)));
      }
      fail(named, "line {}{}{}{}", located.line,
           located.fault.raised ? " refuses the messages: " : ": ", located.fault.text, about);
    }
  }

  // The first message that, added to those before it, gives the same fault. None if there is the
  // same fault without any, or if finding it takes too long.
  std::optional<size_t> message_at_fault(const OrderedJson& messages, const ChatOptions& options,
                                         const std::string& text) const {
    const int64_t steps = options.max_steps / static_cast<int64_t>(messages.size() + 1);
    OrderedJson prefix = OrderedJson::array();
    for (size_t i = 0;; ++i) {
      try {
        render(prefix, options, steps);
      } catch (const jinja::LocatedFault& located) {
        if (located.fault.text == text) return i == 0 ? std::nullopt : std::optional(i - 1);
      }
      if (i == messages.size()) return std::nullopt;
      prefix.push_back(messages[i]);
    }
  }

  std::vector<ChatSpan> spans_by_prefix(const OrderedJson& messages,
                                        const ChatOptions& options) const {
    const std::string whole = render_or_fail(messages, options).text;
    ChatOptions prompting = options;
    prompting.add_generation_prompt = true;
    std::vector<ChatSpan> out;
    OrderedJson prefix = OrderedJson::array();
    for (size_t i = 0; i < messages.size(); ++i) {
      std::string prompt;
      const bool own = role_of(messages[i]) == "assistant";
      if (own) {
        prompt = render_or_fail(prefix, prompting).text;
      }
      prefix.push_back(messages[i]);
      if (!own) continue;
      const std::string with = render_or_fail(prefix, options).text;
      if (!with.starts_with(prompt) || !whole.starts_with(with)) {
        fail(choose(options.tools != nullptr).program.where,
             "message {}: the text {} it depends on it, so the assistant's part is unknown; try a "
             "template with {{% generation %}} blocks",
             i, with.starts_with(prompt) ? "up to the end of" : "before");
      }
      out.push_back({prompt.size(), with.size()});
    }
    return out;
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& where,
                                 std::map<std::string, std::string> special_tokens,
                                 const std::map<std::string, std::string>& others) {
  auto impl = std::make_unique<Impl>();
  impl->where = where;
  impl->special_tokens = std::move(special_tokens);
  impl->add("default", std::string(text), where);
  for (const auto& [name, other] : others) {
    impl->add(name, other, fmt::format("{}: chat template '{}'", where, name));
  }
  return ChatTemplate(std::move(impl));
}

ChatTemplate ChatTemplate::load(const std::string& path) {
  if (!is_directory(path)) return parse(read_file(path, kMaxTemplateBytes), path);
  std::optional<ChatTemplate> found = find(path);
  if (!found) {
    fail(path,
         "no chat template; expected chat_template.jinja, or chat_template in "
         "tokenizer_config.json");
  }
  return std::move(*found);
}

std::optional<ChatTemplate> ChatTemplate::find(const std::string& path, const std::string& given) {
  auto impl = std::make_unique<Impl>();
  impl->where = path;
  const std::string beside = join_path(path, "chat_template.jinja");
  const std::string more = join_path(path, "additional_chat_templates");
  const std::string& file = given.empty() ? beside : given;
  if (!given.empty() || file_exists(file)) {
    impl->add("default", read_file(file, kMaxTemplateBytes), file);
  }
  if (given.empty() && is_directory(more)) {
    constexpr std::string_view kEnding = ".jinja";
    for (const std::string& name : list_dir(more)) {
      if (!name.ends_with(kEnding)) continue;
      const std::string named = join_path(more, name);
      impl->add(name.substr(0, name.size() - kEnding.size()), read_file(named, kMaxTemplateBytes),
                named);
    }
  }
  const std::string config_file = join_path(path, "tokenizer_config.json");
  const nlohmann::json json = read_tokenizer_config(path);
  const JsonView config(json, config_file);
  impl->special_tokens = special_tokens_of(config);
  if (impl->sources.empty() && config.has("chat_template")) {
    const JsonView templates = config.at("chat_template");
    if (templates.is_string()) {
      impl->add("default", templates.as_string(), config_file + ": chat_template");
    } else {
      for (size_t i = 0; i < templates.size(); ++i) {
        const std::string name = templates.at(i).get_string("name");
        impl->add(name, templates.at(i).get_string("template"),
                  fmt::format("{}: chat_template '{}'", config_file, name));
      }
    }
  }
  if (impl->sources.empty()) return std::nullopt;
  return ChatTemplate(std::move(impl));
}

RenderedChat ChatTemplate::render(const OrderedJson& messages, const ChatOptions& options) const {
  OrderedJson list = impl_->normalized_messages(messages, options.tools != nullptr);
  std::optional<Continuation> continuation;
  if (!options.continue_final_message.empty()) {
    if (options.add_generation_prompt) {
      fail(impl_->where,
           "both a generation prompt and a message to continue; expected one of them");
    }
    continuation.emplace(options.continue_final_message, impl_->where);
    continuation->mark(&list.back(), impl_->choose(options.tools != nullptr).text);
  }
  jinja::Rendered rendered = impl_->render_or_fail(list, options);
  if (continuation) {
    continuation->cut(&rendered.text);
    for (ChatSpan& span : rendered.generation) {
      span.end = std::min(span.end, rendered.text.size());
    }
    std::erase_if(rendered.generation, [](const ChatSpan& span) { return span.begin >= span.end; });
  }
  return {std::move(rendered.text), std::move(rendered.generation)};
}

std::vector<ChatSpan> ChatTemplate::assistant_spans(const OrderedJson& messages,
                                                    const ChatOptions& options) const {
  if (options.add_generation_prompt || !options.continue_final_message.empty()) {
    fail(impl_->where,
         "the assistant's parts of an unfinished chat; expected neither a generation "
         "prompt nor a message to continue");
  }
  const OrderedJson list = impl_->normalized_messages(messages, options.tools != nullptr);
  if (!has_generation_blocks(options.tools != nullptr))
    return impl_->spans_by_prefix(list, options);
  jinja::Rendered rendered = impl_->render_or_fail(list, options);
  if (rendered.lost_generation_line > 0) {
    fail(impl_->choose(options.tools != nullptr).program.where,
         "line {}: a generation block inside of a macro or captured block, so its place in the "
         "text is unknown; expected one outside of them",
         rendered.lost_generation_line);
  }
  return std::move(rendered.generation);
}

bool ChatTemplate::has_generation_blocks(bool with_tools) const {
  return impl_->choose(with_tools).program.has_generation;
}

void ChatTemplate::set_special_tokens(std::map<std::string, std::string> tokens) {
  impl_->special_tokens = std::move(tokens);
}

const std::map<std::string, std::string>& ChatTemplate::special_tokens() const {
  return impl_->special_tokens;
}

}  // namespace hocket::data
