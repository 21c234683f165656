// SPDX-License-Identifier: Apache-2.0
#include "engine/programs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/id.h"
#include "engine/params.h"
#include "engine/timed.h"
#include "program/contract.h"

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
    // Training is played; what it is evaluated with runs as it does.
    const bool trains = options.purpose == Purpose::train;
    found.session = std::make_unique<Session>(
        found.compiled, store_, trains ? played(run_, found.compiled->program) : nullptr);
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

ParameterReader::ParameterReader(Programs& programs, const CompileOptions& reads,
                                 const Compiled* trained)
    : programs_(programs), trained_(trained) {
  const std::shared_ptr<const Compiled> compiled = programs.entry(reads).compiled;
  if (trained == nullptr || program::held_otherwise(trained->program, compiled->program).empty()) {
    shared_ = &programs.session(reads);
  } else {
    own_ = std::make_unique<Session>(compiled, runtime::Store(programs.ranks()));
  }
}

void ParameterReader::update() {
  if (!own_) return;
  copy_parameters(own_->graph(), trained_->program, programs_.store(), own_->program(),
                  own_->store());
}

}  // namespace hocket::engine
