"""The op in torch: the parallel form over the new tokens, on top of the recurrent state."""

import torch

from archc.torch_backend.step import carried


class Retain(torch.nn.Module):
    """q, k, v (batch, seq, heads x head_dim) -> the same; ``state`` is written in place."""

    def forward(self, q, k, v, step=None, state=None):
        dtype, seq = v.dtype, v.shape[1]
        q, k, v = (x.unflatten(-1, (-1, self.op.head_dim)).transpose(1, 2).float() for x in (q, k, v))
        # Padding neither decays the state nor writes to it.
        valid = q.new_ones(1, 1, seq) if step is None or step.new is None else step.valid().float().unsqueeze(1)
        log = (valid * torch.tensor(self.op.decays, device=q.device).log().view(-1, 1)).cumsum(-1).unsqueeze(-1)
        past, k = carried(state, step), k * valid.unsqueeze(-1)
        past = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if past is None else past
        outs = []
        for a, b in [(i, i + 1) for i in range(seq)] if self.twin == "needed" else [(0, seq)]:
            decay = (log[:, :, a:b] - log[:, :, :b].mT).exp().tril(a)
            # What the new tokens keep of each other, and what the state keeps of those before.
            scores, held = q[:, :, a:b] @ k[:, :, :b].mT * decay, q[:, :, a:b] @ past
            outs.append(scores @ v[:, :, :b] + log[:, :, a:b].exp() * held)
        if state is not None:
            state.copy_(log[:, :, -1:].exp() * past + (k * (log[:, :, -1:] - log).exp()).mT @ v)
        return (torch.cat(outs, 2) * self.op.head_dim**-0.5).transpose(1, 2).flatten(2).to(dtype)


def retention(node, context):
    leaf = Retain()
    leaf.op, leaf.twin = node.op, context.twin
    return leaf
