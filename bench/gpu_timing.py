"""What the benches on one GPU measure with."""
import torch


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def apart(a, b):
    norm = torch.linalg.vector_norm
    return (norm(a - b, dtype=torch.float32) / norm(b, dtype=torch.float32)).item()


def captured(work):
    """A CUDA graph of the work, which has run once before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def turn(work, count, flush):
    """Queued in one go: the device never waits for the host. The events before and after each."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for start, end in events:
        flush.zero_()
        start.record()
        work()
        end.record()
    return events
