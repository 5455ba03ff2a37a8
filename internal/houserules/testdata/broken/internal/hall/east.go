package hall

func (*T[K]) east() {}

func (other) east() {}
