// The products of block_sparse.h on Hopper's tensor cores. Arguments are validated, there
// is something to write, and takes_wgmma() of sources.cuh holds.
#pragma once

#include "troupe/kernels/block_sparse/block_sparse.h"

namespace troupe::sparse {

void block_sdd_sm90(const BlockSdd& args, cudaStream_t stream);
void block_dsd_sm90(const BlockDsd& args, cudaStream_t stream);
void block_dds_sm90(const BlockDds& args, cudaStream_t stream);

}  // namespace troupe::sparse
