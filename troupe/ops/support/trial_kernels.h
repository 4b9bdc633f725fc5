// Kernels on trial: written to be faster than those that run, and not known to be. What a GPU runs
// by default are those that are; who wants the others says so, once, for the process
// (recipe key run.trial_kernels, torch.ops.troupe.set_trial_kernels). Both have the same contract.
//
//   moe_ffn   where an expert's weight gradient has few tiles, its sums are cut into segments of
//             kSegmentRowsSm90 rows (kernels/moe_sm90; Hopper, bf16), as those of grouped_gemm
//             with one expert are; with 128 they take 1.05 of the time (gpu_ops, 65536 rows)
#pragma once

namespace troupe {

void set_trial_kernels(bool on);
bool trial_kernels();

}  // namespace troupe
