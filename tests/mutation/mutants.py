# SPDX-License-Identifier: Apache-2.0
"""Faults of the product, one a row, each with the tests that must notice it.

A row names a file, a piece of its text with the part to be changed between « and », what stands
there instead, what that breaks, and ctest entries of which at least one must fail. The piece must
occur exactly once in the file (tests/mutation/anchors_test.py sees to that); when code moves or is
rewritten, its rows move along. An expression becomes `(MUT(k) ? new : old)`; a part that ends with a
semicolon or a brace is a statement and becomes `if (MUT(k)) { new } else { old }`. run.py builds all
mutants at once and switches them on one by one.

A row without tests is equivalent to the original: `breaks` then says why no test can notice it."""
from typing import NamedTuple


class Mutant(NamedTuple):
    number: int
    file: str
    at: str      # with «…» around what is changed
    new: str
    breaks: str
    tests: tuple  # of ctest names


KERNELS = ("kernels/moe_test", "kernels/dense_test", "kernels/attention_test", "kernels/linear_test",
           "ops/op_harness_test")
LOADER = ("data/loader_test",)
RULES = ("check/rules_test",)
LOOP = ("train/learning_rate_test", "train/reference_test")
GENERATE = ("train/draw_test", "train/generate_test")

MUTANTS = [
    # --- kernels
    Mutant(1, "src/kernels/cpu/router.cc", "while (at > 0 && «p[i] > p[id[at - 1]]») {",
           "p[i] >= p[id[at - 1]]", "ties of top-k go to the highest index", KERNELS),
    Mutant(2, "src/kernels/cpu/router.cc",
           'const double c = «args.attrs->f("coef") * static_cast<double>(e) / (tokens * k * tokens)»;',
           "0.0", "the load-balancing loss has no gradient", KERNELS),
    Mutant(3, "src/kernels/cpu/router.cc", "+= (dw[t * k + j] - «mean») / total;", "T(0)",
           "the gradient of the normalised routing weights", KERNELS),
    Mutant(4, "src/kernels/cpu/rope.cc", 'const double theta = «attrs.f("theta")»;',
           'attrs.f("theta") * 1.001', "the base of the rotation is 0.1 % off", KERNELS),
    Mutant(5, "src/kernels/cpu/rope.cc",
           "f[i] = «(1 - smooth) * f[i] / factor + smooth * f[i]»;",
           "smooth * f[i] / factor + (1 - smooth) * f[i]",
           "llama3 scaling interpolates the wrong way round", KERNELS),
    Mutant(6, "src/kernels/cpu/optimizer.cc", "std::sqrt(«hyper[2]»)", "hyper[1]",
           "AdamW corrects the second moment by the first one's bias", KERNELS),
    Mutant(7, "src/kernels/cpu/optimizer.cc", 'eps = static_cast<T>(«args.attrs->f("eps")»);',
           'args.attrs->f("eps") * static_cast<double>(scale)',
           "AdamW adds eps before the bias correction", KERNELS),
    Mutant(8, "src/kernels/cpu/optimizer.cc", "max_norm / (norm + «1e-6»)", "0.0",
           "the clipping factor lacks its 1e-6", KERNELS),
    Mutant(9, "src/kernels/cpu/rms_norm.cc", "for (int64_t i = 0; i < d && «!add_dg»; ++i) {",
           "true", "the norm's weight gradient is not accumulated", KERNELS),
    Mutant(10, "src/kernels/cpu/attention_cached.cc", "if («pos[i] < 0») continue;",
           "pos[i] < 0 || (n > 1 && i == n - 1)",
           "the last token of a prefill is not put into the KV cache", KERNELS),
    Mutant(11, "src/kernels/cpu/attention_cached.cc", "row, «pos[i] + 1», d, scale,",
           "(n == 1 && pos[i] > 0 ? pos[i] : pos[i] + 1)", "a decoded token does not see itself",
           KERNELS),
    Mutant(12, "src/kernels/cpu/cross_entropy.cc", ".add = «accumulates(args, 2)» || t > 0", "false",
           "the head's weight gradient is not accumulated", KERNELS),

    # --- the training loop
    Mutant(13, "src/train/schedule.cc",
           "std::min(1.0, static_cast<double>(«step - train.warmup_steps») / span);",
           "step - 1 - train.warmup_steps", "the cosine is one step late", LOOP),
    Mutant(14, "src/train/trainer.cc",
           "engine::Hyper::of(section_, metrics.lr, «step»);",
           "step - start_.step", "the bias correction begins anew at resume",
           ("train/resume_test",)),
    Mutant(15, "src/train/trainer.cc",
           "batch_of(*loader_, «step», rows_.here, section_.seq_len);",
           "step - start_.step", "the data begin anew at resume", ("train/resume_test",)),
    Mutant(16, "src/train/schedule.cc",
           "return train.lr * static_cast<double>(«step») / "
           "static_cast<double>(train.warmup_steps);",
           "step - 1", "the warm-up begins at zero", LOOP),
    Mutant(17, "src/train/schedule.cc", "batch.row(«row»));", "rows - 1 - row",
           "the sequences of a step in reverse order", ("train/batch_test",)),
    Mutant(61, "src/train/schedule.cc",
           "return «end + (train.lr - end) * 0.5 * (1 + std::cos(std::numbers::pi * x))»;",
           "train.lr", "the learning rate never falls", LOOP),
    Mutant(62, "src/train/trainer.cc", "std::max<int64_t>(«targets», 1));",
           "targets * 2",
           "the loss and the gradient are halved", LOOP),
    Mutant(54, "src/train/metrics.cc", 'if (in.get_int("step") <= «step») { kept', "step + 1",
           "a resumed run keeps the metrics of a step that it repeats", ("cli/execute_test",)),
    Mutant(55, "src/train/saver.cc",
           "prune_checkpoints(folder(), step, «run_.config.train.keep_last»)",
           "1", "only the newest checkpoint is kept", ("cli/execute_test",)),
    Mutant(18, "src/autodiff/autodiff.cc",
           '{"weight_decay", «param.type.dims.size() > 1» ? config.weight_decay : 0.0}', "true",
           "weight decay also of vectors", ("train/reference_test",)),
    Mutant(52, "src/train/memory.cc", "if (have <= 0 || all.with_host() <= «have») return;", "have * 4",
           "a run that needs four times the memory begins", ("train/memory_test",)),
    Mutant(53, "src/engine/compile.cc",
           "how.num_micro_batches = «run.plan.pp > 1 ? run.plan.num_micro_batches : 1»;",
           "1",
           "nothing: the loss of an evaluation is the same sum over the same sequences, in however "
           "many micro-batches they go through the pipeline; only its speed differs", ()),
    Mutant(58, "src/train/profiler.cc", "if («pass >= kWarmUp»)\n", "true",
           "the profile counts the passes of the warm-up", ("train/profiler_test",)),

    # --- generation
    Mutant(46, "src/train/sample.cc", "(n == 0 || «kept < options.top_p * sum»)",
           "kept + p[n] < options.top_p * sum", "top-p drops the token that reaches p",
           GENERATE),
    Mutant(47, "src/train/sample.cc", "if («id == tokenizer.eos_id()») break;", "false",
           "text goes on after its end", GENERATE),
    Mutant(48, "src/train/sample.cc", "logits = forward(session, run, ids, «done++», 1);",
           "(done >= 70 ? done : done++)", "the text is stale after 70 tokens", GENERATE),
    Mutant(59, "src/train/sample.cc", "logits = forward(session, run, ids, «done++», 1);",
           "(done++, done - 2)",
           "every decoded step reads the token before", GENERATE),
    Mutant(60, "src/train/sample.cc", "static_cast<int32_t>(«begin» + i);", "(count > 1 ? 0 : begin)",
           "the positions of a prompt begin anew at every chunk", GENERATE),

    # --- runtime and communication
    Mutant(19, "src/runtime/executor.cc",
           "if («event.is_complete()») continue;",
           "(prepared.waits.size() > 1 && &prepared.waits.back() == &event) || event.is_complete()",
           "a task that waits for several lanes does not wait for the last", ("runtime/executor_test",)),
    Mutant(20, "src/runtime/device.cc", "sleeper->due = «sleeper->count <= now»;",
           "sleeper->count < now",
           "a lane is not woken by the task that it waits for", ("runtime/wake_test", "runtime/device_test")),
    Mutant(63, "src/runtime/executor.cc",
           "if («!reached(turn, turn.wait(rank_lanes.timeout()))») return false;", "false",
           "a message is sent before the kernel of its lane has run", ("runtime/device_test",)),
    Mutant(64, "src/runtime/executor.cc", "if (!impl_->has_inputs || «holds()» || untouched) return;",
           "true", "a program runs on what was fed to another", ("runtime/rank_test",)),
    Mutant(21, "src/comm/local.cc",
           "op.run(all, me, phase); «barrier(m, call);»",
           "if (op.phases > 1) barrier(m, call);",
           "who has read leaves, and may overwrite what others still read",
           ("comm/ops_test", "comm/local_test")),
    Mutant(22, "src/comm/local.cc", "op.run(all, me, phase); «barrier(m, call);»",
           "if (phase + 1 == op.phases) barrier(m, call);",
           "all_reduce collects before all have summed",
           ("comm/ops_test", "comm/local_test")),

    # --- files and checkpoints
    Mutant(25, "src/base/file.cc", "writer(file);\n    «file.sync();»", "",
           "a file is renamed before its content is on the disk", ("base/file_test",)),
    Mutant(26, "src/base/file.cc", "«sync_dir(parent_path(to));»", "",
           "the folder is not synced after the rename", ("checkpoint/checkpoint_test",)),
    Mutant(27, "src/checkpoint/parts.cc", "«out_.sync();»", "",
           "the files of a checkpoint are not synced", ("checkpoint/checkpoint_test",)),
    Mutant(28, "src/checkpoint/save.cc", "«sync_dir(folder_);»", "",
           "the folder of a checkpoint is not synced", ("checkpoint/checkpoint_test",)),
    Mutant(29, "src/checkpoint/checkpoint.cc", "file_size(path); «size != file.bytes»)",
           "size < file.bytes",
           "a longer file passes as complete", ("checkpoint/damage_test", "checkpoint/checkpoint_test")),
    Mutant(30, "src/checkpoint/names.cc", "if («!is_alive(pid)») { remove_tree", "true",
           "the temporary folder of a living process is deleted", ("checkpoint/damage_test", "checkpoint/checkpoint_test")),

    # --- the check
    Mutant(31, "src/check/task_rules.cc", "for (size_t p = 0; «p < o»; ++p)", "false",
           "two outputs may go to one buffer", RULES),
    Mutant(32, "src/check/rules.cc", "if (kind.workspace >= «want») return", "want / 2",
           "half of the workspace is enough", RULES),
    Mutant(33, "src/check/hazards.cc",
           "if («ctx_.position[user] >= at.before[lane]») { overlap(user);", "false",
           "a workspace may be overwritten while it is in use", RULES),
    Mutant(34, "src/check/pieces.cc", "} else if (!repeats && «!fills_hull(parts, over)») {", "false",
           "parts with addends in common are summed", RULES + ("check/pieces_test",)),
    Mutant(35, "src/program/memory.cc",
           "touch(buffer.offset, "
           "«buffer.expected_bytes != kNone ? buffer.expected_bytes : buffer.type.bytes()»);",
           "buffer.expected_bytes != kNone ? buffer.expected_bytes / 2 : buffer.type.bytes()",
           "ragged buffers count with half of what they are expected to hold",
           ("check/memory_test", "plans/memory_test")),
    Mutant(56, "src/check/sweep.cc",
           "if («!same && !program::may_meet(ctx_.program.kind(ctx_.task(ref)), "
           "ctx_.program.kind(ctx_.task(refs[0])))») {", "false",
           "different collectives may meet", RULES),
    Mutant(69, "src/check/transfers.cc",
           "if («!seen.insert(key).second || plan.copies(rank)») continue;", "true",
           "a transfer may take what nobody gives", RULES),
    Mutant(70, "src/check/transfers.cc", "if («wrong.text.empty()») continue;", "true",
           "what a transfer gives may begin elsewhere than its task says", RULES),
    Mutant(71, "src/graph/layout.cc",
           "return {number * least + std::min(number, more), "
           "least + («number < more ? 1 : 0»)};", "number + 1 == parts ? more : 0",
           "the last part has what does not divide", ("pieces/across_test",)),
    Mutant(57, "src/check/task_rules.cc", 'if («task.lane == want») return "";', "true",
           "a group may use two lanes", RULES),

    # --- cost and simulation
    Mutant(36, "src/cost/cost_model.cc",
           "return std::exp(std::log(below.ns) + «share» * (std::log(beyond.ns) - std::log(below.ns)));", "1 - share",
           "the interpolation between two timings is turned round", ("cost/cost_model_test",)),
    Mutant(37, "src/cost/cost_model.cc",
           "return points.back().ns * «roofline / points.back().roofline_s»;", "1",
           "work beyond the largest timing costs no more", ("cost/cost_model_test",)),
    Mutant(38, "src/comm/ops/all_reduce.cc", '.name = "ring", .rounds = «2 * (n - 1)»,', "n - 1",
           "a ring pays half of its latencies", ("cost/cost_model_test",)),
    Mutant(39, "src/sim/engine.cc",
           "if (slot.posted) { "
           "begin(peer, end.task, «table(peer).tasks[end.task].lane», true);",
           "record.lane", "the time of a receive is booked in the sender's lane", ("sim/engine_test",)),
    Mutant(40, "src/sim/engine.cc", "if (slot.posted) { heap_.push({«now_», peer, end.task});",
           "now_ + 1000", "a receive ends a microsecond late", ("sim/engine_test",)),
    Mutant(41, "src/sim/engine.cc",
           "«lane == static_cast<uint8_t>(program::Lane::host)»;", "false",
           "work of the host counts as exposed communication", ("sim/engine_test",)),
    Mutant(42, "src/sim/simulator.cc",
           "report.peak_flops = cluster.peak_flops(report.dtype) * «cores»;", "1",
           "the MFU is of one core instead of the rank's", ("sim/simulator_test",)),

    # --- data
    Mutant(43, "src/data/loader.cc", "if («document == 0») { at = 0;", "false",
           "the loader does not go back to the first token after the last document", LOADER),
    Mutant(44, "src/data/loader.cc", "hash_combine(seed_, «epoch»);", "0",
           "every epoch has the same order", LOADER),
    Mutant(45, "src/data/loader.cc", "static_cast<int64_t>(«offset») +", "0",
           "every epoch cuts the same sequences", LOADER),

    # --- lowering, passes, the memory plan
    Mutant(23, "src/program/finalize.cc", "if («needs[lane] > now[lane]») return false;",
           "lane < 3 && needs[lane] > now[lane]",
           "memory is reused before the receiving lanes are done with it",
           ("program/finalize_test", "check/check_test")),
    Mutant(24, "src/program/finalize.cc",
           "want(writer[output]); «want_readers(output);»", "",
           "a write does not wait for the readers in other lanes", ("program/finalize_test",
                                                                    "check/check_test")),
    Mutant(49, "src/passes/bucket.cc", "if («touches(bucket, task)») { flush(bucket);", "false",
           "a bucket is reduced after its gradients are read", ("check/check_test",)),
    Mutant(50, "src/passes/bucket.cc", "if («bucket.bytes >= limit_») { flush(bucket);", "false",
           "a bucket grows beyond its size", ("passes/bucket_test",)),
    Mutant(51, "src/parallel/schedule.cc", "std::min(«stages - 1 - stage», micro_batches);",
           "stages - stage", "1f1b warms up with one micro-batch more", ("parallel/schedule_test",)),
    Mutant(90, "src/passes/chunk_parts.cc", "length, «std::ssize(parts)» * length", "0",
           "every piece has the first tokens", ("plans/chunk_test",)),
    Mutant(91, "src/passes/chunk_parts.cc", "whole.out[i] && «chunk > 0» && !rank_", "chunk > 1",
           "the second piece of a sum over tokens overwrites the first", ("plans/chunk_test",)),
    Mutant(92, "src/passes/chunk_parts.cc", "ranks, «rank»).begin", "0",
           "rows are regrouped by the sizes of the first rank's experts", ("plans/chunk_test",)),
    Mutant(93, "src/passes/chunk.cc", "round + («ends» ? 1 : 0);", "false",
           "a piece comes back from its experts before the next one leaves", ("plans/chunk_test",)),
    Mutant(94, "src/parallel/lower.cc", "{ «remaining_[value] += num_micro_batches;» }",
           "remaining_[value] = num_micro_batches;",
           "a gradient is reduced before its last piece", ("plans/chunk_test",)),

    # --- buckets
    Mutant(65, "src/check/pack_task.cc", "if («run.begin != meeting.runs[0].begin») {", "false",
           "an op takes other elements of one operand than of another",
           ("pieces/buckets_test",)),
    Mutant(66, "src/check/pack_task.cc", "if («graph::holds_twice(rows)») { refuse(", "false",
           "the elements of a tensor that is there twice are summed twice", RULES),
    Mutant(67, "src/check/packs.cc", "return slice(row, «number(over, coords)» * length, length);",
           "0", "every rank takes the first block of a bucket", ("check/packs_test",)),
    Mutant(68, "src/program/contract.cc", "run(«begin + from - at», to - from, from - mine);",
           "begin", "a shard that begins inside a tensor holds its first elements",
           ("engine/params_test",)),
    Mutant(72, "src/check/buckets.cc",
           "if («run.begin % width != 0 || run.length % width != 0») return program::kNone;", "false",
           "parts of rows of a bucket pass as rows", ("pieces/buckets_test",)),
    Mutant(73, "src/check/buckets.cc", "fits = fits && («!both || one.begin == other.begin»);", "true",
           "other elements of a tensor are added to its elements",
           ("pieces/buckets_test",)),
    Mutant(74, "src/check/packs.cc", "if (last.component == run.component && («zeros || last.begin + last.length == run.begin»)) {",
           "true", "elements that begin elsewhere continue those before them", ("check/packs_test",)),

    # --- views, parts, codecs, transfers
    Mutant(75, "src/check/regions.cc", "if («covered != region») {", "false",
           "what was written in part is read as a whole", ("check/where_test",)),
    Mutant(76, "src/check/join.cc", "} else if («(*row)[i] != held») {", "false",
           "parts that are cut differently elsewhere are joined",
           ("pieces/sums_test",)),
    Mutant(77, "src/check/codecs.cc", "«expr.a != first.a» || made.part != static_cast<int32_t>(i)) {",
           "false", "codes of one value are decoded with the scales of another", RULES),
    Mutant(78, "src/program/parts.cc", "deps.push_back(first_[dep.task] + «dep.part»);", "0",
           "a part waits for the first part of what it waits for", ("pieces/parts_test",)),
    Mutant(79, "src/check/transfers.cc",
           "|| «!pieces_[value.piece].addends.empty()») {", "false",
           "an unfinished sum may be transferred", RULES + ("pieces/across_test",)),
    Mutant(80, "src/check/pieces.cc",
           "const int64_t begin = begins.at(letter, at); «begin != runs[0].begin») {", "false",
           "a task may say of a letter that it begins elsewhere", RULES + ("pieces/attention_test",)),
    Mutant(81, "src/check/where.cc", "if («addends.missing.empty()») continue;", "true",
           "a refusal does not say which addends are missing", ("check/where_test",)),

    # --- peers by tables
    Mutant(82, "src/check/sweep.cc", "if («peer != ctx_.ways.peers(other)[place]») continue;", "true",
           "messages of one tag may go two ways to one peer", RULES),
    Mutant(83, "src/program/ways.cc", "if («from != kNone») return kNone;", "false",
           "two ranks may have one peer", RULES + ("check/check_test",)),
    Mutant(84, "src/program/memory.cc", "if («seen.insert(sort).second») {",
           "seen.insert(std::vector<int32_t>()).second",
           "what the first rank of a class has in flight stands for all", ("program/memory_test",)),
    Mutant(85, "src/graph/cut.cc", "shift.offsets[«row_index(shift.axes, coords)»];", "0",
           "all ranks receive from as far as the first one", ("graph/cut_test",)),
    Mutant(86, "src/passes/expand.cc", "«std::reverse(levels.begin(), levels.end());»", "",
           "a sum begins between the furthest ranks", ("passes/expand_test",)),
    Mutant(87, "src/program/views.cc",
           "const int64_t end = «begins[first] + regions[first].length»;",
           "begins[first] + 1", "a part does not meet those that begin behind its first element", ("program/views_test",)),

    # --- checkpoints of many processes
    Mutant(120, "src/checkpoint/parts.cc", "return «hasher.finish().hex() == part.hash»;", "true",
           "a part of a checkpoint is believed whatever it holds",
           ("checkpoint/damage_test", "checkpoint/processes_test")),
    Mutant(121, "src/checkpoint/run_folder.cc", "while («!file_exists(mark(leader_))»)", "false",
           "hosts of file systems of their own are taken for one", ("checkpoint/processes_test",)),
    Mutant(122, "src/checkpoint/checkpoint.cc", "if («part.host == host» && is_mine()", "true",
           "a host compares what other hosts have", ("checkpoint/processes_test",)),
    Mutant(123, "src/checkpoint/missing_parts.cc", "if («found.part->host != from_.host()») return;",
           "false", "what another host has counts as here",
           ("checkpoint/processes_test", "plans/checkpoint_test")),
    Mutant(125, "src/comm/together.cc", "if («told[0] != kDone») {", "false",
           "the error of another process is not heard of", ("checkpoint/processes_test",)),
]
