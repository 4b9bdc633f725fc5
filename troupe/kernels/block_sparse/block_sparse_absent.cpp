// In place of the products on Hopper's tensor cores, in a build whose architectures lack 90a:
// takes_wgmma() of sources.cuh is false there.
#include "troupe/core/check.h"
#include "troupe/kernels/block_sparse/block_sparse_sm90.h"

namespace troupe::sparse {

#define TROUPE_ABSENT(name, Args)                                                      \
  void name(const Args&, cudaStream_t) {                                               \
    TROUPE_CHECK(false, #name,                                                         \
                 "is for sm_90a, which CMAKE_CUDA_ARCHITECTURES of this build lacks"); \
  }

TROUPE_ABSENT(block_sdd_sm90, BlockSdd)
TROUPE_ABSENT(block_dsd_sm90, BlockDsd)
TROUPE_ABSENT(block_dds_sm90, BlockDds)

#undef TROUPE_ABSENT

}  // namespace troupe::sparse
