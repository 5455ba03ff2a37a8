// Package partitions looks after the daily partitions of events and of claims as an
// operator orders it: what state each is in and what it waits for, one round of
// maintenance, and the events of a partition that held rows when it was attached.
//
// The rounds are those of relay and consumer, which own the life of a partition; a dry
// run changes nothing. What a round did is reported also where it failed, so that both
// answers may be there. [PlanAdopt] finds a partition that relays stop for, and its
// order, once carried out, makes every event in it unpublished; producers wait
// meanwhile.
package partitions
