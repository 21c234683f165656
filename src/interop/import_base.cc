// SPDX-License-Identifier: Apache-2.0
#include "interop/import_base.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/product.h"

namespace hocket::interop {

void expect_one_sequence(const std::string& name, const std::string& trainer,
                         const std::string& ranks, const std::string& batch,
                         const Imported& imported, const Beside& beside) {
  const auto value = [&](const char* key) {
    const auto found = imported.keys.find(key);
    return found == imported.keys.end() ? std::string("1") : found->second;
  };
  const std::string cp = value("plan.cp"), micro = value("plan.micro_batch");
  const bool is_set = beside.has("plan.cp") || beside.has("plan.micro_batch");
  if (cp == "1" || micro == "1" || is_set || !beside.keeps_plan) return;
  fail(name,
       "{} is {} with {} sequences in a micro-batch ({}): {} spreads every sequence over these "
       "ranks; here they share out the tokens of a micro-batch, and ranks with whole sequences "
       "exchange nothing; expected 1 sequence in a micro-batch; try --set plan.micro_batch=1, with "
       "as many sequences in a step, and the same in the file",
       ranks, cp, micro, batch, trainer);
}

TreeImport::TreeImport(Settings file, std::string name, const RanksOfFile& ranks, Beside beside)
    : file_(std::move(file)), name_(std::move(name)), ranks_(ranks), beside_(std::move(beside)) {}

void TreeImport::set(const std::string& key, double value) {
  set(key, fmt::format("{:.12g}", value));
}

std::string TreeImport::lower_of(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

void TreeImport::set_mesh(int64_t in_file) {
  const int64_t known = in_file > 0 ? in_file : ranks_.otherwise;
  const int64_t ranks = ranks_.asked > 0 ? ranks_.asked : known;
  const int64_t others = product_at_most({tp_, pp_, cp_});
  if (ranks > 0 && ranks % others != 0) {
    fail(name_, "there are {} ranks; expected a multiple of tp {} x pp {} x cp {}", ranks, tp_, pp_,
         cp_);
  }
  if (in_file > 0 && ranks_.asked > 0 && ranks_.asked != in_file) {
    fail(name_,
         "--ranks is {}; expected the {} of the file; try --cluster, which finds a plan of other "
         "ranks",
         ranks_.asked, in_file);
  }
  dp_ = ranks > 0 ? ranks / others : 1;
  if (ranks == 0) {
    note("the file does not say how many ranks there are: plan.dp is 1; try --ranks");
  }
  for (const auto& [key, size] :
       {std::pair{"plan.tp", tp_}, {"plan.pp", pp_}, {"plan.cp", cp_}, {"plan.dp", dp_}}) {
    if (size > 1) {
      set(key, size);
    }
  }
}

Imported TreeImport::finish() {
  KeyReport report = file_.unread(beside_);
  imported_.ignored = std::move(report.ignored);
  imported_.notes.insert(imported_.notes.end(), report.notes.begin(), report.notes.end());
  return std::move(imported_);
}

}  // namespace hocket::interop
