// The entries. Where none was measured, they follow from these numbers (CUDA programming guide,
// "technical specifications per compute capability"; NVIDIA's data sheets):
//
//                                    8.0 A100   8.6 A10   8.9 L40S   9.0 H100   12.0 RTX 5090
//   multiprocessors                     108        72        142        132        170
//   shared memory of a block, KiB       163        99         99        227         99
//   of a multiprocessor, KiB            164       100        100        228        100
//   registers of a multiprocessor       65536 everywhere
//   products a clock (bf16), each       1024       512        512       1024 by mma.sync
//
// Blocks: a stage takes (128 + n) 64 bytes, and the driver 1 KiB of each block.
//   n = 256, 4 stages    97 KiB: one block everywhere; 256 threads of up to 255 registers are all.
//   n = 128, 4 stages    65 KiB: two blocks of 128 threads on 8.0 and 9.0, but one on 8.6 and 8.9,
//                        four warps, one a scheduler, with nothing to do while it waits.
//   n = 128, 3 stages    49 KiB: two blocks on 8.6 and 8.9 too, hence three stages there. So on 12.0,
//                        which has the shared memory of 8.9; its entry is that one's.
//   n = 64, 4 stages     49 KiB: two blocks everywhere (three fit on 8.0; two have as many warps
//                        as the other tiles).
//   Weight gradients of 128 columns have 256 threads, and registers for one block: four stages.
// Rates: for 16 of k, a tile reads (128 + n) 32 bytes of the L2 cache for 128 n 16 products. 256
// columns need 3/4 of the bytes a product of 128, and are 1.1 times as fast (a tenth is what the
// Hopper GPUs' rule allowed a wide tile to waste); 64 columns need 3/2, by the same slope 87. By
// shared memory, 128 bytes a clock: four warps of 64x32 read for 96 clocks and copies write for 48,
// beside products of 128 clocks on 8.0 (89 of 100), of 256 on 8.6 and 8.9 (no bound). Hence 80: a
// tile that nobody has timed must save more than it is computed to.
// 9.0 is measured, on an H100: shared memory bounds wide tiles of rows more than the L2 does.
#include "troupe/kernels/grouped_gemm/gemm_table.h"

namespace troupe {
namespace {

constexpr GemmEntry kEntries[] = {
    {.capability = 80,
     .gpus = "A100, A30",
     .measured = false,
     .rows = {{256, 4, 1, 110}, {128, 4, 2, 100}, {64, 4, 2, 80}},
     .weight = {{256, 4, 1, 110}, {128, 4, 1, 100}, {64, 4, 2, 80}}},
    {.capability = 86,
     .gpus = "A10, A40, RTX 3090",
     .measured = false,
     .rows = {{256, 4, 1, 110}, {128, 3, 2, 100}, {64, 4, 2, 80}},
     .weight = {{256, 4, 1, 110}, {128, 4, 1, 100}, {64, 4, 2, 80}}},
    {.capability = 89,
     .gpus = "L40S, L4, RTX 4090",
     .measured = false,
     .rows = {{256, 4, 1, 110}, {128, 3, 2, 100}, {64, 4, 2, 80}},
     .weight = {{256, 4, 1, 110}, {128, 4, 1, 100}, {64, 4, 2, 80}}},
    {.capability = 90,
     .gpus = "H100, H200",
     .measured = true,
     .rows = {{256, 4, 1, 88}, {128, 4, 2, 100}, {64, 4, 2, 69}},
     .weight = {{256, 4, 1, 119}, {128, 4, 1, 100}, {64, 4, 2, 85}}},
    {.capability = 120,
     .gpus = "RTX 5090, RTX PRO 6000",
     .measured = false,
     .rows = {{256, 4, 1, 110}, {128, 3, 2, 100}, {64, 4, 2, 80}},
     .weight = {{256, 4, 1, 110}, {128, 4, 1, 100}, {64, 4, 2, 80}}},
};

}  // namespace

std::span<const GemmEntry> gemm_entries() {
  return kEntries;
}

const GemmEntry& gemm_entry(int capability) {
  const GemmEntry* found = kEntries;
  for (const GemmEntry& entry : gemm_entries()) {
    if (entry.capability <= capability) found = &entry;
  }
  return *found;
}

}  // namespace troupe
