"""Which values a gradient of the outputs would reach.

A value that was read with no gradient attached is cut off. Inside `no_grad` nothing can be told, until a
value comes out that has one after all: then a custom backward pass stands for what happened inside.
"""

from tiebeam.ir import Graph


def reached_by_gradients(graph: Graph) -> list[bool]:
    """For each value whether a path of attached uses leads to an output, in one pass backwards.

    A choice that is returned (the next token, beside a hidden state) carries no gradient and cuts none: up to it
    the path counts.
    """
    alive = [False] * len(graph.values)
    for v in graph.outputs:
        alive[v] = v in graph.attached or graph.values[v].integral
    for node in reversed(graph.nodes):
        if not any(alive[v] for v in node.outputs):
            continue
        for v, attached in zip(node.inputs, node.attached, strict=True):
            if attached is not False or not node.recorded:
                alive[v] = True
    return alive
