// Troupe's public header: the MoE layer and the operators beside it. Tensors are PyTorch's; faults
// are troupe::Error. A program that may use a GPU calls has_cuda() before it asks PyTorch for one.
#pragma once

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/version.h"
#include "troupe/nn/moe/loss_edge.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/nn/moe/moe_stats.h"
#include "troupe/nn/moe/routing_trace.h"
#include "troupe/nn/moe/upcycle.h"
#include "troupe/ops/adamw.h"
#include "troupe/ops/cross_entropy.h"
#include "troupe/ops/norm.h"
#include "troupe/ops/rotary.h"
#include "troupe/ops/support/cuda_plugin.h"
