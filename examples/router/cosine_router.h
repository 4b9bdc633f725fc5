// A router of one's own, outside Troupe: cosine routing (Chi et al. 2022, "On the Representation
// Collapse of Sparse Mixture of Experts").
//   z_te = cos(x_t, w_e) / tau, tau learned;   the top K experts, weighted by the softmax of their z
#pragma once

#include <memory>

#include "troupe/troupe.h"

std::unique_ptr<troupe::Router> cosine_router(const troupe::RouterShape& shape, double aux_loss);
