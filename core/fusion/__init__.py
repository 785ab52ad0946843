"""The fusion deciders, explained: which producers go into which consumers, why not, and what that costs."""
