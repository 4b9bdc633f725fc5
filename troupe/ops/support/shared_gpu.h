// Whether other kernels run on this process's GPUs beside ours, such as collectives between ranks.
// Whoever starts those says so, once; products then leave room for them (`waves` of
// kernels/moe_sm90). It changes speed and no bit. A fact of the process, as PyTorch's global
// context is, since autograd calls operators on threads of its own.
#pragma once

namespace troupe {

void set_shares_gpu(bool shared);
bool shares_gpu();

}  // namespace troupe
