// For tests: rows to their experts with nothing between the begin and the end.
#pragma once

#include "troupe/distributed/dispatch/dispatcher.h"

namespace troupe {

inline ExpertRows dispatch_rows(Dispatcher& dispatcher, const Handle& handle,
                                const at::Tensor& x_TD, const Routed& routed) {
  begin_dispatch(dispatcher, handle, routed);
  return end_dispatch(dispatcher, handle, x_TD, routed.scores_TK);
}

}  // namespace troupe
