// Kernels on trial: written to be faster than those that run, and measured by nobody yet. What a
// GPU runs by default are the measured ones; who wants the others says so, once, for the process
// (recipe key run.trial_kernels, torch.ops.troupe.set_trial_kernels). Both have the same contract.
//
//   weight gradients   where an expert's gradient has few tiles, its sums are cut into segments of
//                      kSegmentRowsSm90 rows (kernels/moe_sm90; Hopper, bf16)
//   block_sparse       f16 and bf16 by wgmma, all operands by the copy engine (Hopper)
//   histogram          a row by one cluster of blocks, in one launch (Hopper)
#pragma once

namespace troupe {

void set_trial_kernels(bool on);
bool trial_kernels();

}  // namespace troupe
