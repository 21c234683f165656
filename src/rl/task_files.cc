// SPDX-License-Identifier: Apache-2.0
#include "rl/task_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/text.h"

namespace hocket::rl {

namespace {

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr const char* kManifest = "task.json";
constexpr int64_t kMinRow = 256;     // tokens of a training row, and positions of the model
constexpr int64_t kBeginning = 1;    // tokens in front of a prompt
constexpr int64_t kSpareTokens = 2;  // of a sample: the end of text, and one too many

std::string json_string(const std::string& text) {
  std::string out;
  append_json_string(&out, text);
  return out;
}

/// Lengths that the files' numbers follow from.
struct Lengths {
  int64_t answer = 0;  ///< most tokens of a sample
  int64_t row = 0;     ///< tokens of a training row
};

Lengths lengths_of(const Task& task) {
  Lengths out;
  out.answer = task.longest_answer() + kSpareTokens;
  const auto longest = static_cast<uint64_t>(kBeginning + task.longest_prompt() + out.answer);
  out.row = std::max(kMinRow, static_cast<int64_t>(std::bit_ceil(longest)));
  return out;
}

std::string problem_lines(const TaskFilesOptions& options, const std::vector<Problem>& problems,
                          const char* split) {
  std::string out;
  for (size_t i = 0; i < problems.size(); ++i) {
    const Problem& problem = problems[i];
    const std::string prompt =
        options.chat_model.empty()
            ? json_string(problem.prompt)
            : fmt::format("[{{\"role\":\"user\",\"content\":{}}}]", json_string(problem.question));
    out += fmt::format(
        "{{\"prompt\":{},\"ground_truth\":{},\"data_source\":\"task/{}\",\"extra_info\":"
        "{{\"split\":\"{}\",\"index\":{}}}}}\n",
        prompt, problem.ground_truth, options.task.name, split, i);
  }
  return out;
}

std::string warm_up_lines(const std::vector<WarmUpExample>& examples) {
  std::string out;
  for (const WarmUpExample& example : examples) {
    JsonWriter line;
    line.object().member("prompt", example.prompt).member("completion", example.completion).end();
    out += line.take() + '\n';
  }
  return out;
}

/// Returns config.json of a Llama of 1.3 M parameters, which two CPU cores train in minutes.
std::string model_config(int64_t vocab_size, int64_t positions) {
  JsonWriter json({.indent = 2});
  json.object().key("architectures").array().value("LlamaForCausalLM").end();
  json.member("model_type", "llama")
      .member("vocab_size", vocab_size)
      .member("hidden_size", 160)
      .member("intermediate_size", 448)
      .member("num_hidden_layers", 4)
      .member("num_attention_heads", 5)
      .member("num_key_value_heads", 5)
      .member("head_dim", 32)
      .member("hidden_act", "silu")
      .member("max_position_embeddings", positions)
      .member("initializer_range", 0.02)
      .member("rms_norm_eps", 1e-6)
      .member("rope_theta", 10000.0)
      .member("attention_bias", false)
      .member("mlp_bias", false)
      .member("tie_word_embeddings", false)
      .member("bos_token_id", 0)
      .member("eos_token_id", 0)
      .member("torch_dtype", "float32");
  return json.end().take() + "\n";
}

std::string warm_up_yaml(const TaskFilesOptions& options, const Lengths& lengths) {
  const auto path = [&](const char* name) { return json_string(join_path(options.folder, name)); };
  return fmt::format(
      "# Teaches a small model the form of answers to task {task} (docs/tasks.md).\n"
      "objective: sft\n"
      "model: {{path: {folder}}}\n"
      "data:\n"
      "  sources: [{{path: {examples}}}]\n"
      "  valid_fraction: 0.02\n"
      "train: {{steps: {steps}, global_batch: 8, seq_len: {row}, lr: 2.0e-3, warmup_steps: 20, "
      "seed: {seed}}}\n"
      "plan: {{micro_batch: 8}}\n"
      "output: {{dir: {output}, trace: false, baselines: none, sample_tokens: {answer}}}\n",
      fmt::arg("task", options.task.name), fmt::arg("folder", json_string(options.folder)),
      fmt::arg("examples", path("warmup.jsonl")),
      fmt::arg("steps", find_task(options.task.name).warm_up_steps), fmt::arg("row", lengths.row),
      fmt::arg("seed", options.seed), fmt::arg("output", path("warmup")),
      fmt::arg("answer", lengths.answer));
}

std::string rl_yaml(const TaskFilesOptions& options, const Lengths& lengths) {
  const auto path = [&](const char* name) { return json_string(join_path(options.folder, name)); };
  const TaskKind& kind = find_task(options.task.name);
  const bool chat = !options.chat_model.empty();
  const std::string data = fmt::format(
      "data:\n"
      "  sources: [{{path: {}}}]\n"
      "  evaluation: [{{name: held_out, path: {}}}]\n",
      path("train.jsonl"), path("held_out.jsonl"));
  if (chat) {
    return fmt::format(
        "# Trains a language model on task {} with a low-rank adapter (docs/tasks.md).\n"
        "objective: rl\n"
        "model: {{path: {}}}\n"
        "adapter: {{type: lora, r: 8, alpha: 16, targets: [all-linear]}}\n"
        "{}"
        "train: {{steps: 40, seq_len: 512, lr: 1.0e-4, schedule: constant, warmup_steps: 2, "
        "eval_every: 10, seed: {}}}\n"
        "optimizer: {{weight_decay: 0}}\n"
        "rl:\n"
        "  prompts_per_step: 8\n"
        "  samples_per_prompt: 8\n"
        "  max_new_tokens: 64\n"
        "  rewards: [{}]\n"
        "output: {{dir: {}}}\n",
        options.task.name, json_string(options.chat_model), data, options.seed, kind.chat_reward,
        path("rl"));
  }
  const std::string kl =
      kind.kl_coef == nullptr
          ? ""
          : fmt::format("  kl_coef: {}  # stays near the model of the warm-up\n", kind.kl_coef);
  return fmt::format(
      "# Teaches the model of warmup.yaml to be right in task {task} (docs/tasks.md).\n"
      "objective: rl\n"
      "model: {{path: {model}}}\n"
      "{data}"
      "train: {{steps: {steps}, seq_len: {row}, lr: {lr}, schedule: cosine, warmup_steps: 5, "
      "eval_every: 20, seed: {seed}}}\n"
      "optimizer: {{weight_decay: 0}}\n"
      "rl:\n"
      "  prompts_per_step: 32\n"
      "  samples_per_prompt: 16\n"
      "  max_new_tokens: {answer}\n"
      "  rewards: [{reward}]\n"
      "  overlong: {{buffer: 1, penalty: 0.5}}  # for samples that do not end\n"
      "  entropy_coef: {entropy}  # without it some seeds collapse early\n"
      "{kl}"
      "  eval_prompts: 0\n"
      "  max_num_seqs: 256\n"
      "  max_num_batched_tokens: 1024\n"
      "output: {{dir: {output}}}\n",
      fmt::arg("task", options.task.name), fmt::arg("model", path("warmup")),
      fmt::arg("data", data), fmt::arg("steps", kind.rl_steps), fmt::arg("row", lengths.row),
      fmt::arg("lr", kind.rl_lr), fmt::arg("seed", options.seed),
      fmt::arg("answer", lengths.answer), fmt::arg("reward", kind.reward),
      fmt::arg("entropy", kind.entropy_coef), fmt::arg("kl", kl), fmt::arg("output", path("rl")));
}

std::string manifest(const TaskFilesOptions& options) {
  JsonWriter json({.indent = 2});
  json.object()
      .member("task", options.task.name)
      .member("digits", options.task.digits)
      .member("operands", options.task.operands)
      .member("operators", options.task.operators)
      .member("reversed", options.task.reversed)
      .member("chat_model", options.chat_model)
      .member("seed", options.seed)
      .member("train", options.sizes.train)
      .member("held_out", options.sizes.held_out)
      .member("warm_up", options.chat_model.empty() ? options.sizes.warm_up : 0);
  return json.end().take() + "\n";
}

/// Throws Error if the folder's files are not ours to replace.
void require_own_folder(const TaskFilesOptions& options, const std::string& manifest_text,
                        const std::vector<std::pair<std::string, std::string>>& files) {
  const std::string& folder = options.folder;
  const std::string own = join_path(folder, kManifest);
  if (!file_exists(own)) {
    for (const auto& [name, text] : files) {
      if (file_exists(join_path(folder, name))) {
        fail(folder,
             "has {} of others, which would be replaced; expected a new folder; try another "
             "--out",
             name);
      }
    }
    return;
  }
  if (read_file(own) == manifest_text) return;
  for (const char* training : {"warmup", "rl"}) {
    if (file_exists(join_path(folder, training))) {
      fail(folder,
           "holds {}, a training of this task with other options; expected a new folder; try "
           "another --out, or remove that one",
           training);
    }
  }
}

}  // namespace

data::Tokenizer task_tokenizer() {
  data::TokenizerSpec spec;
  spec.byte_level = false;
  spec.tokens.push_back(kEndOfText);
  for (const char c : std::string(kTaskCharacters)) {
    spec.tokens.emplace_back(1, c);
  }
  data::AddedToken end;
  end.text = kEndOfText;
  end.special = true;
  end.in_vocabulary = true;
  spec.added.push_back(std::move(end));
  spec.decoders.emplace_back();  // fuse: without a decoder `tokenizers` puts blanks between tokens
  // In front of every text, as a checkpoint of ours reads a prompt whose tokenizer says nothing.
  spec.prefix = {0};
  spec.eos = 0;
  return data::Tokenizer(std::move(spec));
}

std::vector<std::string> write_task_files(const TaskFilesOptions& given) {
  TaskFilesOptions options = given;
  options.task = complete_options(given.task);
  const bool chat = !options.chat_model.empty();
  if (chat) {
    options.sizes.warm_up = 0;
  }
  const Lengths lengths = lengths_of(*make_task(options.task));
  const TaskProblems problems = draw_problems(options.task, options.seed, options.sizes);
  std::vector<std::pair<std::string, std::string>> files = {
      {"train.jsonl", problem_lines(options, problems.train, "train")},
      {"held_out.jsonl", problem_lines(options, problems.held_out, "held_out")},
      {"rl.yaml", rl_yaml(options, lengths)}};
  const data::Tokenizer tokenizer = task_tokenizer();
  if (!chat) {
    files.emplace_back("warmup.jsonl", warm_up_lines(problems.warm_up));
    files.emplace_back("warmup.yaml", warm_up_yaml(options, lengths));
    files.emplace_back("config.json", model_config(tokenizer.vocab_size(), lengths.row));
    files.emplace_back("generation_config.json",
                       "{\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 0\n}\n");
  }
  const std::string manifest_text = manifest(options);
  require_own_folder(options, manifest_text, files);
  make_dirs(options.folder);
  // First of all, so that an interrupted call can be repeated.
  write_file_atomic(join_path(options.folder, kManifest), manifest_text);
  std::vector<std::string> paths;
  for (const auto& [name, text] : files) {
    paths.push_back(join_path(options.folder, name));
    write_file_atomic(paths.back(), text);
  }
  if (!chat) {
    tokenizer.save_folder(options.folder);
    paths.push_back(join_path(options.folder, "tokenizer.json"));
    paths.push_back(join_path(options.folder, "tokenizer_config.json"));
  }
  return paths;
}

}  // namespace hocket::rl
