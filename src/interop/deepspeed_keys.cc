// SPDX-License-Identifier: Apache-2.0
// Implements: deepspeed_keys (tables.h), the keys of DeepSpeed's JSON. Sources:
// deepspeed/runtime/constants.py and the models of its sections, in this and earlier releases.
#include "interop/tables.h"

namespace hocket::interop {

namespace {

constexpr KeyGroup kDeepspeedGroups[] = {
    {KeyEffect::read, "",
     "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
     "gradient_clipping communication_data_type sequence_parallel_size data_types: "
     "grad_accum_dtype "
     "bf16: enabled bfloat16: enabled fp16: enabled torch_autocast: enabled dtype "
     "tensor_parallel: autotp_size tp.tp_size pipeline: stages "
     "zero_optimization: stage reduce_bucket_size overlap_comm prefetch_bucket_size "
     "stage3_prefetch_bucket_size param_persistence_threshold stage3_param_persistence_threshold "
     "mics_shard_size cpu_offload offload_param.device offload_optimizer.device "
     "optimizer: type params.lr params.betas params.eps params.weight_decay params.momentum "
     "params.nesterov params.adam_w_mode params.ns_steps scheduler: type params.warmup_min_lr "
     "params.warmup_max_lr "
     "params.warmup_num_steps params.warmup_type params.total_num_steps params.warmup_min_ratio "
     "params.cos_min_ratio"},
    {KeyEffect::plan, "nothing is offloaded here",
     "zero_optimization: cpu_offload_params=false cpu_offload_param=false zenflow.** "
     "activation_checkpointing: cpu_checkpointing=false compile: offload_activation=false "
     "offload_opt_states=false offload_parameters=false"},
    {KeyEffect::plan, "messages have the values' own type here",
     "zero_optimization: zero_quantized_weights=false zero_quantized_gradients=false "
     "zero_quantized_nontrainable_weights=false"},
    {KeyEffect::plan, "parameters have one group of ranks here",
     "zero_optimization: zero_hpz_partition_size=1 mics_hierarchical_params_gather=false"},
    {KeyEffect::plan, "recomputed activations are not split over tp here",
     "activation_checkpointing: partition_activations=false"},
    {KeyEffect::plan, "moments and master weights are f32 here",
     "bf16: bf16_master_weights_and_grads=false bf16_optimizer_states=false fp16: "
     "fp16_master_weights_and_grads=false"},
    {KeyEffect::plan, "every step has the same sequences here",
     "curriculum_learning: enabled=false : data_efficiency: enabled=false : "
     "progressive_layer_drop: enabled=false : elasticity: enabled=false : autotuning: "
     "enabled=false"},
    {KeyEffect::plan, "layers of a stage follow from plan.pp_layers",
     "pipeline: partition=best|parameters|uniform"},
    {KeyEffect::model, "attention here sees all keys of a window", "sparse_attention.**"},
    {KeyEffect::model, "weights here are not compressed",
     "compression_training.** quantize_training.** weight_quantization.**"},
    {KeyEffect::none, "",
     "steps_per_print wall_clock_breakdown memory_breakdown dump_state prescale_gradients "
     "gradient_predivide_factor gradient_allreduce_op sparse_gradients disable_allgather "
     "disable_python_gc zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
     "dataloader_drop_last fp32_allreduce amp.** data_parallel_group global_rank log_level "
     "use_data_before_expert_parallelism seq_parallel_communication_data_type "
     "keep_in_fp32_modules managed_gradient_accumulation graph_harvesting use_node_local_storage "
     "load_universal_checkpoint vocabulary_size inference.** hybrid_engine.** moe.** "
     "checkpoint: tag_validation load_universal use_node_local_storage "
     "parallel_write.pipeline_stage writer.** async_io : aio: block_size queue_depth thread_count "
     "single_submit overlap_events intra_op_parallelism use_gds : comms_logger: enabled verbose "
     "prof_all debug prof_ops : tensorboard: enabled output_path job_name : wandb: enabled group "
     "team project : csv_monitor: enabled output_path job_name : comet: enabled "
     "samples_log_interval project workspace api_key experiment_name experiment_key online mode : "
     "flops_profiler: enabled profile_step module_depth top_modules detailed output_file "
     "recompute_fwd_factor : eigenvalue: enabled verbose max_iter tol stability "
     "gas_boundary_resolution layer_name layer_num : compile: enabled backend kwargs deepcompile "
     "autoep_non_moe free_activation free_activation_threshold offload_activation_pin_memory "
     "double_buffer symmetric_memory debug_log sync_before_reduce sync_after_reduce "
     "sync_before_allgather sync_after_allgather keep_int_input_tensors keep_all_input_tensors "
     "passes : nebula.** fp16: auto_cast loss_scale initial_scale_power loss_scale_window "
     "hysteresis consecutive_hysteresis min_loss_scale : bf16: immediate_grad_update "
     "check_grad_overflow check_overflow : torch_autocast: lower_precision_safe_modules : "
     "data_types: param_dtype buffer_dtype : optimizer: legacy_fusion params.bias_correction "
     "params.torch_adam params.amsgrad params.fused params.lr_max params.set_grad_none "
     "params.freeze_step params.cuda_aware params.comm_backend_name params.muon_lr "
     "params.adam_lr params.max_grad_norm : scheduler: params.last_batch_iteration : "
     "tensor_parallel: dtype tp_overlap_comm vocab_parallel_lm_head vocab_parallel_ce_backend "
     "tp.tp_grain_size tp_grain_size partition_config.** preset_model keep_module_on_host "
     "replace_with_kernel_inject injection_policy_tuple : zero_optimization: contiguous_gradients "
     "reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions allgather_bucket_size "
     "compute_grad_norm load_from_fp32_weights elastic_checkpoint sub_group_size "
     "cpu_offload_use_pin_memory model_persistence_threshold max_live_parameters "
     "max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold "
     "use_all_reduce_for_fetch_params allgather_sequential "
     "stage3_gather_fp16_weights_on_model_save stage3_gather_16bit_weights_on_model_save "
     "stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold "
     "stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params "
     "stage3_allgather_sequential ignore_unused_parameters legacy_stage1 round_robin_gradients "
     "parameter_alignment memory_efficient_linear pipeline_loading_checkpoint "
     "override_module_apply log_trace_cache_warnings enable_sanity_checks leaf_module.** "
     "save_muon_momentum_buffer_in_memory offload_param.nvme_path offload_param.pin_memory "
     "offload_param.buffer_count offload_param.buffer_size offload_param.max_in_cpu "
     "offload_optimizer.nvme_path offload_optimizer.pin_memory offload_optimizer.buffer_count "
     "offload_optimizer.pipeline_read offload_optimizer.pipeline_write "
     "offload_optimizer.fast_init offload_optimizer.ratio offload_optimizer.super_offload "
     "offload_optimizer.cpuadam_cores_perc : activation_checkpointing: "
     "contiguous_memory_optimization number_checkpoints synchronize_checkpoint_boundary profile : "
     "pipeline: seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned "
     "use_reentrant : curriculum_learning: curriculum_type min_difficulty max_difficulty "
     "schedule_type schedule_config.** : data_efficiency: seed data_sampling.** data_routing.** : "
     "progressive_layer_drop: theta gamma : elasticity: max_train_batch_size micro_batch_sizes "
     "min_gpus max_gpus min_time version prefer_larger_batch ignore_non_elastic_batch_info "
     "num_gpus_per_node model_parallel_size : autotuning: fast results_dir exps_dir overwrite "
     "start_profile_step end_profile_step metric_path tuner_type tuner_early_stopping "
     "tuner_num_trials arg_mappings.** max_train_batch_size min_train_batch_size "
     "max_train_micro_batch_size_per_gpu min_train_micro_batch_size_per_gpu "
     "num_tuning_micro_batch_sizes mp_size metric model_info.**"}};

}  // namespace

const KnownKeys& deepspeed_keys() {
  static const KnownKeys keys(kDeepspeedGroups);
  return keys;
}

}  // namespace hocket::interop
