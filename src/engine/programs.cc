// SPDX-License-Identifier: Apache-2.0
#include "engine/programs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/id.h"
#include "engine/params.h"
#include "engine/timed.h"

namespace hocket::engine {

namespace {

/// Everything in the options that decides the program.
std::string key_of(const CompileOptions& options) {
  return fmt::format("{} {} {} {} {} {} {}", place_of(options.purpose), options.micro_batch,
                     options.seq_len, options.num_micro_batches, options.new_tokens,
                     options.cache_slots, options.skip_passes);
}

}  // namespace

Programs::Entry& Programs::entry(const CompileOptions& options) {
  Entry& entry = entries_[key_of(options)];
  if (!entry.compiled) {
    entry.compiled = std::make_shared<const Compiled>(compile(run_, options));
  }
  return entry;
}

const Compiled& Programs::compiled(const CompileOptions& options) {
  return *entry(options).compiled;
}

Session& Programs::session(const CompileOptions& options) {
  Entry& found = entry(options);
  if (!found.session) {
    expect_alike(found.compiled->program, ranks_);
    // Training is played; what it is evaluated with runs as it does.
    const bool trains = options.purpose == Purpose::train;
    found.session = std::make_unique<Session>(
        found.compiled, ranks_, trains ? played(run_, found.compiled->program) : nullptr);
  }
  return *found.session;
}

void Programs::replace(const CompileOptions& options, Compiled given) {
  entries_[key_of(options)] = {std::make_shared<const Compiled>(std::move(given)), nullptr};
}

void Programs::end_sessions() {
  for (auto& [key, entry] : entries_) {
    entry.session.reset();
  }
}

}  // namespace hocket::engine
